// What every page does: goes on by itself, sorts and filters its tables, asks before work is lost.

import { listen } from "./live.js";
import { arm } from "./actions.js";
import { armTables } from "./tables.js";

arm();
armTables();
if (document.querySelector("[data-live]")) listen();
