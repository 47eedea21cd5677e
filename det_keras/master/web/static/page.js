// The script of every page: live updates, times, tables, confirmation before work is lost.

import { arm } from "./actions.js";
import { armChoosers } from "./chooser.js";
import { listen } from "./live.js";
import { armShare } from "./share.js";
import { armShortcuts } from "./shortcuts.js";
import { armState } from "./state.js";
import { armTables } from "./tables.js";
import { localize } from "./times.js";
import { armViews } from "./views.js";

localize(document);
arm();
armTables();
armChoosers();
armViews();
armShare();
armShortcuts();
armState();
if (document.querySelector("[data-live]")) listen();
