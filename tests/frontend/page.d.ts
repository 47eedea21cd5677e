// What the scripts of the pages rely on, beyond the types of browsers: the elements that a selector finds are those that
// the templates have, with the properties of fields, dialogs and menus.

interface PageElement extends HTMLElement {
  checked: boolean;
  close(value?: string): void;
  content: any;
  disabled: boolean;
  elements: any;
  href: string;
  open: boolean;
  options: any;
  reset(): void;
  select(): void;
  returnValue: string;
  showModal(): void;
  tBodies: any;
  tHead: any;
  rows: any;
  value: string;
}

interface ParentNode {
  querySelector(selectors: string): PageElement | null;
  querySelectorAll(selectors: string): NodeListOf<PageElement>;
}

interface Element {
  closest(selectors: string): PageElement | null;
}

interface Document {
  getElementById(id: string): PageElement | null;
}

// Events of pages have elements as their targets.
interface EventTarget {
  closest(selectors: string): PageElement | null;
  dataset: DOMStringMap;
  id: string;
}

interface DocumentEventMap {
  "ranges-chosen": CustomEvent;
  "trials-chosen": CustomEvent;
}

// Of the vendored libraries.
declare const uPlot: any;

interface Window {
  Plotly: any;
}
