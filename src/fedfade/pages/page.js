/**
 * What every page has: elements by a call, a theme, hints, tables that sort, downloads.
 * All scripts of a page are one; those of the parts add themselves to PARTS.
 */

/** @type {Record<string, (root: HTMLElement, data: any) => void>} */
const PARTS = {};

/** @type {(() => void)[]} */
const REDRAWN = []; // called when the theme or the width changes

const SVG = "http://www.w3.org/2000/svg";

/**
 * @param {Element} element
 * @param {Record<string, any>} attributes
 * @param {(Node | string)[]} inside
 */
function fill(element, attributes, inside) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...inside);
  return element;
}

/** An HTML element. @param {string} tag @param {Record<string, any>} attributes @param {(Node | string)[]} inside @returns {any} */
function h(tag, attributes = {}, ...inside) {
  return fill(document.createElement(tag), attributes, inside);
}

/** An SVG element. @param {string} tag @param {Record<string, any>} attributes @param {(Node | string)[]} inside @returns {any} */
function g(tag, attributes = {}, ...inside) {
  return fill(document.createElementNS(SVG, tag), attributes, inside);
}

/** A colour of the style sheet, as it is in this theme. @param {string} name */
function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

const isDark = () => document.documentElement.dataset.theme === "dark";

/** A colour that can be seen on the page's ground: lighter where that is dark. @param {string} colour */
function seen(colour) {
  if (!isDark()) return colour;
  const parts = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  const light = (Math.max(...parts) + Math.min(...parts)) / 510;
  const white = Math.max(0, (0.62 - light) / (1 - light + 0.01));
  return `#${parts.map((p) => Math.round(p + white * (255 - p)).toString(16).padStart(2, "0")).join("")}`;
}

/** @param {HTMLElement} button */
function setUpTheme(button) {
  const root = document.documentElement;
  const asked = matchMedia("(prefers-color-scheme: dark)");
  /** @type {string | null} */
  let stored = null;
  try { stored = localStorage.getItem("fedfade-theme"); } catch { /* a browser may refuse */ }
  const set = (/** @type {boolean} */ dark) => {
    root.dataset.theme = dark ? "dark" : "light";
    button.setAttribute("aria-pressed", String(dark));
    REDRAWN.forEach((draw) => draw());
  };
  set(stored ? stored === "dark" : asked.matches);
  asked.addEventListener("change", (event) => { if (!stored) set(event.matches); });
  button.hidden = false;
  button.addEventListener("click", () => {
    stored = isDark() ? "light" : "dark";
    set(stored === "dark");
    try { localStorage.setItem("fedfade-theme", stored); } catch { /* likewise */ }
  });
}

/** Draw now, and again when the theme or the width of an element changes. @param {HTMLElement} place @param {() => void} draw */
function keepDrawn(place, draw) {
  REDRAWN.push(draw);
  let width = 0;
  new ResizeObserver(() => {
    if (place.clientWidth !== width) { width = place.clientWidth; draw(); }
  }).observe(place);
}

/** What a `title` says, shown at once, on focus too, and on a touch screen. */
function setUpHints() {
  const box = h("div", { class: "hint-box", role: "tooltip", id: "hint", hidden: true });
  document.body.append(box);
  const hide = () => { box.hidden = true; };
  const show = (/** @type {Event} */ event) => {
    const target = /** @type {Element} */ (event.target);
    const owner = target.closest ? target.closest("[data-hint]") : null;
    if (!owner) { hide(); return; }
    box.textContent = owner.getAttribute("data-hint");
    box.hidden = false;
    const at = owner.getBoundingClientRect();
    const left = Math.min(Math.max(8, at.left), innerWidth - box.offsetWidth - 8);
    const below = at.bottom + box.offsetHeight + 8 < innerHeight;
    box.style.left = `${Math.max(8, left)}px`;
    box.style.top = `${below ? at.bottom + 6 : at.top - box.offsetHeight - 6}px`;
  };
  document.addEventListener("pointerover", show);
  document.addEventListener("focusin", show);
  document.addEventListener("focusout", hide);
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
  addEventListener("scroll", hide, { passive: true });
  for (const owner of document.querySelectorAll("[title]")) {
    owner.setAttribute("data-hint", owner.getAttribute("title") || "");
    owner.setAttribute("aria-description", owner.getAttribute("title") || "");
    owner.removeAttribute("title");
    if (owner instanceof HTMLElement && owner.tabIndex < 0) owner.tabIndex = 0;
  }
}

/** Headings become buttons that sort; a cell's `data-value` counts where it has one. @param {HTMLTableElement} table */
function sortable(table) {
  const body = table.tBodies[0], top = table.tHead;
  if (!top) return;
  const heads = /** @type {HTMLTableCellElement[]} */ ([...top.rows[0].cells]);
  const value = (/** @type {HTMLTableRowElement} */ row, /** @type {number} */ column) => {
    const cell = row.cells[column], given = cell.dataset.value;
    return given === undefined ? cell.textContent.trim() : given === "" ? NaN : Number(given);
  };
  heads.forEach((head, column) => {
    const name = head.textContent;
    const hint = head.getAttribute("data-hint") || head.title;
    head.removeAttribute("title");
    const sort = () => {
      const first = head.dataset.first || "ascending";
      const other = first === "ascending" ? "descending" : "ascending";
      const order = head.getAttribute("aria-sort") === first ? other : first;
      heads.forEach((one) => one.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", order);
      const sign = order === "ascending" ? 1 : -1;
      const rows = [...body.rows].map((row) => ({ row, key: value(row, column) }));
      rows.sort((one, two) => {
        const a = one.key, b = two.key;
        if (typeof a === "string" || typeof b === "string") return sign * String(a).localeCompare(String(b));
        if (isNaN(a) || isNaN(b)) return Number(isNaN(a)) - Number(isNaN(b)); // what was not measured is last
        return sign * (a - b);
      });
      body.append(...rows.map((one) => one.row));
    };
    head.textContent = "";
    head.append(h("button", { type: "button", onclick: sort, title: hint || null }, name));
  });
}

/** @param {Blob} content @param {string} name */
function download(content, name) {
  const url = URL.createObjectURL(content);
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

/** Lines as CSV; text that a spreadsheet would compute is quoted. @param {(string | number | null)[][]} lines @param {string} name */
function downloadCsv(lines, name) {
  const cell = (/** @type {string | number | null} */ value) => {
    const text = value === null || value === undefined ? "" : String(value);
    const safe = typeof value === "string" && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
    return /[",\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  const text = lines.map((line) => line.map(cell).join(",")).join("\n");
  download(new Blob([text, "\n"], { type: "text/csv" }), `${name}.csv`);
}

/** A drawing as it is on the page, with its ground. @param {SVGElement} drawing */
function svgText(drawing) {
  const copy = /** @type {SVGElement} */ (drawing.cloneNode(true));
  copy.setAttribute("xmlns", SVG);
  copy.prepend(g("rect", { width: "100%", height: "100%", fill: css("--panel") }));
  return new XMLSerializer().serializeToString(copy);
}

/** @param {SVGElement} drawing @param {string} name */
function downloadSvg(drawing, name) {
  download(new Blob([svgText(drawing)], { type: "image/svg+xml" }), `${name}.svg`);
}

/** @param {SVGElement} drawing @param {string} name */
function downloadPng(drawing, name) {
  const url = URL.createObjectURL(new Blob([svgText(drawing)], { type: "image/svg+xml" }));
  const image = new Image(), box = drawing.getBoundingClientRect();
  image.onload = () => {
    const canvas = h("canvas", { width: 2 * box.width, height: 2 * box.height });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    URL.revokeObjectURL(url);
    canvas.toBlob((/** @type {Blob} */ content) => download(content, `${name}.png`));
  };
  image.src = url;
}

/** A menu of the page's controls. @param {string} label @param {[string, string][]} choices value and text @param {(value: string) => void} chosen */
function menu(label, choices, chosen) {
  const options = choices.map(([value, text]) => h("option", { value }, text));
  const select = h("select", { onchange: () => chosen(select.value) }, ...options);
  return h("label", {}, h("span", {}, label), select);
}

/** @param {string} text @param {() => void} pressed @param {Record<string, any>} attributes */
function button(text, pressed, attributes = {}) {
  return h("button", { type: "button", onclick: pressed, ...attributes }, text);
}

/** A number with so many digits after the point; a dash for none. @param {number | null} value @param {number} digits */
function shown(value, digits = 2) {
  return value === null || value === undefined || isNaN(value) ? "-" : value.toFixed(digits);
}

function start() {
  const theme = document.getElementById("theme");
  if (theme) setUpTheme(theme);
  for (const table of document.querySelectorAll("table.sorts")) sortable(/** @type {HTMLTableElement} */ (table));
  for (const section of document.querySelectorAll("section[data-kind]")) {
    const root = /** @type {HTMLElement} */ (section);
    const given = root.querySelector(":scope > script.data");
    for (const place of root.querySelectorAll(".live")) /** @type {HTMLElement} */ (place).hidden = false;
    const part = PARTS[root.dataset.kind || ""];
    if (given && part) part(root, JSON.parse(given.textContent || "null"));
  }
  setUpHints();
}
