// The script of every page: live updates, sorting and filtering of tables, confirmation before work is lost.

import { listen } from "./live.js";
import { arm } from "./actions.js";
import { armTables } from "./tables.js";

arm();
armTables();
if (document.querySelector("[data-live]")) listen();
