/**
 * Curves to explore: median and band or every seed, lines to switch off, values under the pointer
 * or the arrow keys, a zoom, downloads.
 *
 * @typedef {{name: string, colour: string, bound?: boolean, about?: string}} Line
 * @typedef {(number | null)[][][]} Values [line][seed][point]
 * @typedef {{name: string, label: string, values: number[] | Values, categories?: string[]}} XAxis
 * @typedef {{name: string, label: string, digits: number, values: Values}} YAxis
 * @typedef {{file: string, kind: string, lines: Line[], x: XAxis[], y: YAxis[]}} Curves `kind`: of which there are several, "seed"
 * @typedef {{x: number, low: number, middle: number, high: number}} Point
 */

const MARKS = [
  "M-3.5,0a3.5,3.5 0 1,0 7,0a3.5,3.5 0 1,0 -7,0", "M-3.2,-3.2h6.4v6.4h-6.4z", "M0,-4.4L4.2,3.2H-4.2z",
  "M0,-4.6L4,0L0,4.6L-4,0z", "M0,4.4L4.2,-3.2H-4.2z", "M-4,-1.3h2.7v-2.7h2.6v2.7h2.7v2.6h-2.7v2.7h-2.6v-2.7h-2.7z",
];

/** Round numbers that cover a range. @param {number} low @param {number} high @param {number} count @param {number} least step */
function ticks(low, high, count, least = 1e-12) {
  const rough = Math.max((high - low) / Math.max(1, count), least);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough * 0.999) || rough;
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-9; at += 1) found.push(at * step);
  return { at: found, digits: Math.max(0, -Math.floor(Math.log10(step) + 1e-9)) };
}

/** As NumPy's percentile. @param {number[]} values @param {number} share */
function quantile(values, share) {
  const sorted = [...values].sort((a, b) => a - b), at = share * (sorted.length - 1);
  const low = sorted[Math.floor(at)], high = sorted[Math.ceil(at)];
  return low + (at - Math.floor(at)) * (high - low);
}

/** @param {XAxis} x @param {number} line @param {number} seed @param {number} point @returns {number} */
function placeOf(x, line, seed, point) {
  const values = /** @type {any} */ (x.values);
  return Array.isArray(values[0]) ? values[line][seed][point] : values[point];
}

/** A line over all seeds; points at which nothing was measured are left out. @param {XAxis} x @param {YAxis} y @param {number} line @returns {Point[]} */
function summaryOf(x, y, line) {
  const seeds = y.values[line], found = [];
  for (let point = 0; point < (seeds[0] || []).length; point += 1) {
    const own = seeds.map((values, seed) => ({ y: values[point], x: placeOf(x, line, seed, point) }));
    const there = own.filter((one) => one.y !== null && one.x !== null);
    if (!there.length) continue;
    const values = there.map((one) => /** @type {number} */ (one.y));
    const [low, middle, high] = [0.1, 0.5, 0.9].map((share) => quantile(values, share));
    found.push({ x: quantile(there.map((one) => one.x), 0.5), low, middle, high });
  }
  return found;
}

/** @param {XAxis} x @param {YAxis} y @param {number} line @returns {Point[][]} */
function eachSeed(x, y, line) {
  return y.values[line].map((values, seed) => values.flatMap((value, point) => {
    const at = placeOf(x, line, seed, point);
    return value === null || at === null ? [] : [{ x: at, low: value, middle: value, high: value }];
  }));
}

/** A piece of a line with its mark, for legends. @param {Line} line @param {number} number */
function swatch(line, number) {
  const colour = seen(line.colour);
  return g("svg", { width: 26, height: 12, viewBox: "0 0 26 12", "aria-hidden": "true" },
    g("line", { x1: 1, x2: 25, y1: 6, y2: 6, stroke: colour, "stroke-width": 2.4, "stroke-dasharray": line.bound ? "5 3" : null }),
    g("path", { d: MARKS[number % MARKS.length], transform: "translate(13 6)", fill: colour }));
}

/** @param {HTMLElement} root @param {Curves} data */
function lineChart(root, data) {
  const several = data.y.some((one) => one.values.some((seeds) => seeds.length > 1));
  const state = {
    x: data.x[0], y: data.y[0], seeds: false, at: /** @type {number | null} */ (null),
    on: new Set(data.lines.keys()), zoom: /** @type {[number, number] | null} */ (null), held: -1,
  };
  const box = h("div", { class: "plot", tabindex: 0, role: "group" });
  const tip = h("div", { class: "tip", hidden: true });
  const told = h("p", { class: "unseen", "aria-live": "polite" });
  const key = h("div", { class: "key", role: "group", "aria-label": "Lines to show" });
  /** @type {any} */
  let now = null; // what is drawn: scales and lines

  const controls = h("div", { class: "controls" });
  const choose = (/** @type {string} */ label, /** @type {any[]} */ axes, /** @type {(one: any) => void} */ set) => {
    if (axes.length > 1) controls.append(menu(label, axes.map((one) => [one.name, one.label]), (value) => set(axes.find((one) => one.name === value))));
  };
  choose("Show", data.y, (one) => { state.y = one; draw(); });
  choose("Against", data.x, (one) => { state.x = one; state.zoom = null; draw(); });
  if (several) {
    controls.append(menu("As", [["band", "median and 10-90 % band"], ["each", `every ${data.kind}`]],
      (value) => { state.seeds = value === "each"; draw(); }));
  }
  const zoomed = (/** @type {number} */ factor) => {
    if (!now) return;
    const [low, high] = now.range, middle = state.at === null ? (low + high) / 2 : state.at;
    const half = (high - low) * factor / 2, wide = half * 2 >= now.full[1] - now.full[0];
    state.zoom = wide ? null : within([middle - half, middle + half], now.full);
    draw();
  };
  const name = () => `${data.file}-${state.y.name}`;
  controls.append(
    h("span", { class: "group", role: "group", "aria-label": "Zoom" },
      button("+", () => zoomed(0.5), { "aria-label": "Zoom in" }),
      button("−", () => zoomed(2), { "aria-label": "Zoom out" }),
      button("Whole", () => { state.zoom = null; draw(); }, { "aria-label": "Whole range", class: "whole" })),
    h("span", { class: "group", role: "group", "aria-label": "Download" },
      button("CSV", () => downloadCsv(asTable(), name())),
      button("SVG", () => downloadSvg(box.querySelector("svg"), name())),
      button("PNG", () => downloadPng(box.querySelector("svg"), name()))),
  );
  root.append(controls, key, box, told);

  const keys = data.lines.map((line, number) => {
    const toggle = () => {
      if (!state.on.delete(number)) state.on.add(number);
      draw();
    };
    const hold = (/** @type {number} */ which) => () => { state.held = which; draw(); };
    const one = button("", toggle, { "aria-pressed": "true", title: line.about || null,
      onpointerenter: hold(number), onpointerleave: hold(-1) });
    key.append(one);
    return one;
  });
  const all = (/** @type {boolean} */ on) => () => { state.on = new Set(on ? data.lines.keys() : []); draw(); };
  if (data.lines.length > 2) key.append(button("all", all(true), { class: "plain" }), button("none", all(false), { class: "plain" }));

  function asTable() {
    /** @type {(string | number | null)[][]} */
    const lines = [["line", data.kind, state.x.name, state.y.name]];
    data.lines.forEach((line, number) => state.on.has(number) && eachSeed(state.x, state.y, number).forEach(
      (points, seed) => points.forEach((point) => lines.push([line.name, seed, point.x, point.middle]))));
    return lines;
  }

  function draw() {
    keys.forEach((one, number) => {
      one.setAttribute("aria-pressed", String(state.on.has(number)));
      one.replaceChildren(swatch(data.lines[number], number), data.lines[number].name);
    });
    box.setAttribute("aria-label", `${state.y.label} against ${state.x.label}: arrow keys read out values`);
    now = drawCurves(box, data, state);
    box.append(tip);
    point(state.at);
  }

  /** Show the values nearest to a place on the x axis. @param {number | null} x */
  function point(x) {
    state.at = x;
    tip.hidden = x === null || !now || !now.lines.length;
    now.cursor.replaceChildren();
    if (tip.hidden || x === null) return;
    const near = now.lines.map((/** @type {any} */ one) => ({
      ...one, point: one.points.reduce((/** @type {Point} */ best, /** @type {Point} */ p) => (Math.abs(p.x - x) < Math.abs(best.x - x) ? p : best)) }));
    const at = near.reduce((/** @type {number} */ best, /** @type {any} */ one) => (Math.abs(one.point.x - x) < Math.abs(best - x) ? one.point.x : best), near[0].point.x);
    near.sort((/** @type {any} */ a, /** @type {any} */ b) => b.point.middle - a.point.middle);
    now.cursor.append(g("line", { x1: now.px(at), x2: now.px(at), y1: now.top, y2: now.bottom, stroke: css("--quiet"), "stroke-dasharray": "3 3" }));
    const digits = state.y.digits, where = state.x.categories ? state.x.categories[at] : shown(at, Number.isInteger(at) ? 0 : 2);
    const lines = near.map((/** @type {any} */ one) => {
      now.cursor.append(g("circle", { cx: now.px(one.point.x), cy: now.py(one.point.middle), r: 4, fill: seen(one.line.colour), stroke: css("--panel"), "stroke-width": 1.5 }));
      const band = several && one.point.low < one.point.high ? ` (${shown(one.point.low, digits)}-${shown(one.point.high, digits)})` : "";
      return h("li", {}, swatch(one.line, one.number), h("span", {}, one.line.name), h("b", {}, shown(one.point.middle, digits)), h("i", {}, band));
    });
    tip.replaceChildren(h("strong", {}, `${state.x.label} ${where}`), h("ul", {}, ...lines));
    const left = now.px(at) > now.width / 2 ? now.px(at) - tip.offsetWidth - 14 : now.px(at) + 14;
    tip.style.left = `${Math.max(2, left)}px`;
    tip.style.top = `${now.top}px`;
    told.textContent = tip.innerText.replaceAll("\n", " ");
  }

  /** @type {number | null} */
  let dragged = null;
  const place = (/** @type {PointerEvent} */ event) => now.ix(event.clientX - box.getBoundingClientRect().left);
  box.addEventListener("pointerdown", (/** @type {PointerEvent} */ event) => { if (event.pointerType === "mouse") dragged = place(event); });
  box.addEventListener("pointermove", (/** @type {PointerEvent} */ event) => {
    point(place(event));
    if (dragged !== null) now.mark(dragged, place(event));
  });
  box.addEventListener("pointerleave", () => { dragged = null; now.mark(0, 0); point(null); });
  box.addEventListener("pointerup", (/** @type {PointerEvent} */ event) => {
    const from = dragged, to = place(event);
    dragged = null;
    if (from === null || Math.abs(now.px(from) - now.px(to)) < 12) { now.mark(0, 0); return; }
    state.zoom = within([Math.min(from, to), Math.max(from, to)], now.full);
    draw();
  });
  box.addEventListener("dblclick", () => { state.zoom = null; draw(); });
  box.addEventListener("blur", () => point(null));
  box.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step || !now.lines.length) return;
    event.preventDefault();
    const every = [...new Set(now.lines.flatMap((/** @type {any} */ one) => one.points.map((/** @type {Point} */ p) => p.x)))].sort((a, b) => a - b);
    const at = state.at, next = at === null ? 0 : every.findIndex((x) => x >= at - 1e-9) + step;
    point(every[Math.min(Math.max(next, 0), every.length - 1)]);
  });
  keepDrawn(box, draw);
}

/** @param {[number, number]} range @param {[number, number]} full @returns {[number, number]} */
function within([low, high], [first, last]) {
  const shift = Math.max(0, first - low) - Math.max(0, high - last);
  return [Math.max(first, low + shift), Math.min(last, high + shift)];
}

/** @param {HTMLElement} box @param {Curves} data @param {any} state */
function drawCurves(box, data, state) {
  const width = Math.max(280, box.clientWidth), height = Math.round(Math.max(280, Math.min(900, 0.75 * innerHeight, 0.46 * width)));
  const named = width > 720 && data.lines.length <= 24;
  const longest = Math.max(0, ...data.lines.map((line) => Math.min(30, line.name.length)));
  const left = 54, right = named ? longest * 6.7 + 22 : 14, top = 12, bottom = height - 40;
  const lines = data.lines.flatMap((line, number) => {
    const points = state.on.has(number) ? summaryOf(state.x, state.y, number) : [];
    return points.length ? [{ line, number, points, seeds: eachSeed(state.x, state.y, number) }] : [];
  });
  const every = lines.flatMap((one) => (state.seeds ? one.seeds.flat() : one.points));
  const xs = every.map((point) => point.x);
  /** @type {[number, number]} */
  const full = xs.length ? [xs.reduce((a, b) => Math.min(a, b)), xs.reduce((a, b) => Math.max(a, b))] : [0, 1];
  if (full[0] === full[1]) { full[0] -= 0.5; full[1] += 0.5; }
  const range = state.zoom || full;
  const inside = every.filter((point) => point.x >= range[0] && point.x <= range[1]);
  let low = inside.reduce((least, point) => Math.min(least, point.low), Infinity);
  let high = inside.reduce((most, point) => Math.max(most, point.high), -Infinity);
  if (!inside.length) { low = 0; high = 1; }
  const room = (high - low || Math.abs(high) || 1) * 0.06;
  low = low >= 0 ? Math.max(0, low - room) : low - room; // what cannot be negative has no negative axis
  high += room;
  const px = (/** @type {number} */ x) => left + (x - range[0]) / (range[1] - range[0]) * (width - left - right);
  const py = (/** @type {number} */ y) => bottom - (y - low) / (high - low) * (bottom - top);
  const ink = css("--quiet"), grid = css("--line"), font = { "font-size": 12, "font-family": "system-ui, sans-serif" };
  const drawing = g("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
  const clip = `clip-${Math.random().toString(36).slice(2)}`;
  drawing.append(g("clipPath", { id: clip }, g("rect", { x: left, y: top - 6, width: width - left - right + 6, height: bottom - top + 12 })));
  const upward = ticks(low, high, height / 70);
  for (const y of upward.at) {
    drawing.append(g("line", { x1: left, x2: width - right, y1: py(y), y2: py(y), stroke: grid }),
      g("text", { x: left - 8, y: py(y) + 4, "text-anchor": "end", fill: ink, ...font }, shown(y, upward.digits)));
  }
  const names = /** @type {string[] | undefined} */ (state.x.categories);
  const along = names ? { at: [...names.keys()], digits: 0 } : ticks(range[0], range[1], width / 90, xs.every(Number.isInteger) ? 1 : undefined);
  for (const x of along.at.filter((one) => one >= range[0] - 1e-9 && one <= range[1] + 1e-9)) {
    drawing.append(g("line", { x1: px(x), x2: px(x), y1: bottom, y2: bottom + 5, stroke: ink }),
      g("text", { x: px(x), y: bottom + 18, "text-anchor": "middle", fill: ink, ...font }, names ? names[x] : shown(x, along.digits)));
  }
  drawing.append(g("line", { x1: left, x2: width - right, y1: bottom, y2: bottom, stroke: ink }),
    g("text", { x: (left + width - right) / 2, y: height - 4, "text-anchor": "middle", fill: ink, ...font }, state.x.label),
    g("text", { x: 13, y: (top + bottom) / 2, "text-anchor": "middle", fill: ink, transform: `rotate(-90 13 ${(top + bottom) / 2})`, ...font }, state.y.label));
  const area = g("g", { "clip-path": `url(#${clip})` });
  drawing.append(area);
  const path = (/** @type {Point[]} */ points, /** @type {"low" | "middle" | "high"} */ which) => points.map((point) => `${px(point.x).toFixed(1)},${py(point[which]).toFixed(1)}`);
  for (const { line, number, points, seeds } of lines) {
    const colour = seen(line.colour), faded = state.held >= 0 && state.held !== number && state.on.has(state.held) ? 0.15 : 1;
    const own = g("g", { opacity: faded, "data-line": line.name });
    if (!state.seeds && points.length > 1) own.append(g("polygon", { points: [...path(points, "low"), ...path(points, "high").reverse()].join(" "), fill: colour, opacity: 0.13 }));
    for (const one of state.seeds ? seeds : [points]) {
      own.append(g("polyline", { points: path(one, "middle").join(" "), fill: "none", stroke: colour, "stroke-width": state.seeds ? 1.3 : 2.2, "stroke-linejoin": "round", "stroke-dasharray": line.bound ? "7 4" : null }));
      const every = Math.max(1, Math.ceil(one.length / 8)), first = number % every; // marks of neighbours apart
      one.forEach((point, at) => (at % every === first || one.length <= 12) && own.append(g("path", { d: MARKS[number % MARKS.length], transform: `translate(${px(point.x).toFixed(1)} ${py(point.middle).toFixed(1)})`, fill: colour })));
    }
    area.append(own);
  }
  if (named) nameEnds(drawing, lines, range, px, py, { left: width - right + 10, top, bottom }, font);
  const chosen = g("rect", { y: top, height: bottom - top, width: 0, fill: css("--accent"), opacity: 0.15 });
  const cursor = g("g");
  drawing.append(chosen, cursor);
  box.replaceChildren(drawing);
  const mark = (/** @type {number} */ from, /** @type {number} */ to) => {
    chosen.setAttribute("x", String(px(Math.min(from, to))));
    chosen.setAttribute("width", String(Math.abs(px(to) - px(from))));
  };
  const ix = (/** @type {number} */ at) => Math.min(range[1], Math.max(range[0], range[0] + (at - left) / (width - left - right) * (range[1] - range[0])));
  return { px, py, ix, mark, cursor, range, full, lines, width, top, bottom };
}

/** Names at the right end of the lines, moved apart. @param {any} drawing @param {any[]} lines @param {[number, number]} range @param {any} px @param {any} py @param {{left: number, top: number, bottom: number}} place @param {any} font */
function nameEnds(drawing, lines, range, px, py, place, font) {
  const ends = lines.map(({ line, points }) => {
    const last = points.filter((/** @type {Point} */ point) => point.x <= range[1]).at(-1) || points[0];
    return { line, y: py(last.middle), to: py(last.middle), x: px(Math.min(last.x, range[1])) };
  }).sort((a, b) => a.y - b.y);
  const gap = Math.min(15, (place.bottom - place.top) / Math.max(1, ends.length));
  ends.forEach((end, at) => { if (at) end.to = Math.max(end.to, ends[at - 1].to + gap); });
  let most = place.bottom;
  for (const end of ends.reverse()) { end.to = Math.min(end.to, most); most = end.to - gap; }
  for (const { line, y, to, x } of ends) {
    drawing.append(g("line", { x1: x + 4, x2: place.left - 2, y1: y, y2: to, stroke: seen(line.colour), opacity: 0.5 }),
      g("text", { x: place.left, y: to + 4, fill: css("--ink"), ...font }, line.name.length > 30 ? `${line.name.slice(0, 29)}…` : line.name));
  }
}

PARTS.chart = (root, data) => lineChart(/** @type {HTMLElement} */ (root.querySelector(".chart")), data);
