/**
 * A comparison to explore: curves, numbers policy by policy, and who is served, as matrix and map.
 *
 * @typedef {{name: string, label: string, about: string, texts: string[], values: (number | null)[], seeds: (number | null)[][]}} Column
 * @typedef {{policies: string[], shares: number[][][], rounds: number[], walk: number[][][][], delivered: number[][][][], side: number}} Served shares: [policy][seed][client] in %; walk: [seed][step][client]; delivered: [policy][seed][step]
 * @typedef {{lines: Line[], clients: number, seeds: number[], curves: Curves, columns: Column[], served: Served}} Comparison
 */

/** A mixture of two colours of the form #rrggbb. @param {string} one @param {string} other @param {number} share of the other */
function mixed(one, other, share) {
  const part = (/** @type {string} */ colour, /** @type {number} */ at) => parseInt(colour.slice(at, at + 2), 16);
  return [1, 3, 5].map((at) => Math.round(part(one, at) + share * (part(other, at) - part(one, at))));
}

/** Black or white, whichever is easier to read on a ground. @param {number[]} ground */
function readable(ground) {
  const [r, g_, b] = ground.map((part) => (part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g_ + 0.0722 * b > 0.179 ? "#000000" : "#ffffff";
}

/** Buttons that save a drawing. @param {() => SVGElement} drawing @param {() => (string | number | null)[][]} table @param {() => string} name */
function downloads(drawing, table, name) {
  return h("span", { class: "group", role: "group", "aria-label": "Download" },
    button("CSV", () => downloadCsv(table(), name())),
    button("SVG", () => downloadSvg(drawing(), name())),
    button("PNG", () => downloadPng(drawing(), name())));
}

/** A number of the table, a bar per policy and a dot per seed. @param {HTMLElement} root @param {Comparison} data */
function barChart(root, data) {
  let column = data.columns[0];
  const box = h("div", { class: "plot bars" });
  const lines = data.lines.filter((line) => data.served.policies.includes(line.name));
  const note = h("p", { class: "quiet small" });
  root.append(h("div", { class: "controls" },
    menu("Show", data.columns.map((one) => [one.name, one.label]), (value) => {
      column = data.columns.find((one) => one.name === value) || column;
      draw();
    }),
    downloads(() => box.querySelector("svg"), () => [["policy", "all", ...data.seeds.map((seed) => `seed ${seed}`)],
      ...lines.map((line, at) => [line.name, column.values[at], ...column.seeds[at]])], () => `columns-${column.name}`)), box, note);

  function draw() {
    note.textContent = `${column.about}${column.about ? ". " : ""}Bar: all seeds; dots: each seed.`;
    const width = Math.max(280, box.clientWidth), row = 30, top = 4, bottom = top + row * lines.length;
    const left = Math.min(width * 0.42, Math.max(...lines.map((line) => line.name.length)) * 7 + 12), right = 56;
    const every = [...column.values, ...column.seeds.flat()].filter((value) => value !== null);
    const most = Math.max(...every, 0), least = Math.min(...every, 0), span = most - least || 1;
    const px = (/** @type {number} */ x) => left + (x - least) / span * (width - left - right);
    const ink = css("--quiet"), font = { "font-size": 12, "font-family": "system-ui, sans-serif" };
    const drawing = g("svg", { width, height: bottom + 24, viewBox: `0 0 ${width} ${bottom + 24}`, role: "img",
      "aria-label": `${column.label}: ${lines.map((line, at) => `${line.name} ${column.texts[at]}`).join(", ")}` });
    const along = ticks(least, most, width / 110);
    for (const x of along.at) {
      drawing.append(g("line", { x1: px(x), x2: px(x), y1: top, y2: bottom, stroke: css("--line") }),
        g("text", { x: px(x), y: bottom + 16, "text-anchor": "middle", fill: ink, ...font }, shown(x, along.digits)));
    }
    lines.forEach((line, at) => {
      const y = top + row * at, value = column.values[at], colour = seen(line.colour);
      const long = Math.floor((left - 12) / 7);
      drawing.append(g("text", { x: left - 8, y: y + row / 2 + 4, "text-anchor": "end", fill: css("--ink"), ...font },
        line.name.length > long ? `${line.name.slice(0, long - 1)}…` : line.name),
      g("text", { x: width - right + 8, y: y + row / 2 + 4, fill: css("--ink"), "font-weight": 600, ...font }, column.texts[at]));
      if (value === null) return;
      drawing.append(g("rect", { x: Math.min(px(0), px(value)), y: y + 6, width: Math.abs(px(value) - px(0)), height: row - 12, rx: 3, fill: colour, opacity: line.bound ? 0.35 : 0.8 }));
      if (data.seeds.length > 1) {
        for (const seed of column.seeds[at]) {
          if (seed !== null) drawing.append(g("circle", { cx: px(seed), cy: y + row / 2, r: 3.4, fill: css("--panel"), stroke: css("--ink"), "stroke-width": 1.2 }));
        }
      }
    });
    box.replaceChildren(drawing);
  }
  keepDrawn(box, draw);
}

/** Shares of rounds, a row per policy. @param {HTMLElement} root @param {Comparison} data */
function matrix(root, data) {
  const { policies, shares } = data.served;
  let seed = -1; // of all, clients by rank
  const wide = h("div", { class: "wide", tabindex: 0, role: "region", "aria-label": "Share of rounds in which each client delivered" });
  const note = h("p", { class: "quiet small" });
  const bins = Math.min(data.clients, 100);

  /** What is shown of a policy: [column]. @param {number} policy */
  const values = (policy) => {
    const every = shares[policy];
    if (seed >= 0) return every[seed];
    const ranked = every.map((one) => [...one].sort((a, b) => b - a));
    const mean = ranked[0].map((_, rank) => ranked.reduce((sum, one) => sum + one[rank], 0) / ranked.length);
    const size = data.clients / bins;
    return Array.from({ length: bins }, (_, bin) => {
      const own = mean.slice(Math.floor(bin * size), Math.floor((bin + 1) * size));
      return own.reduce((sum, one) => sum + one, 0) / own.length;
    });
  };
  const choices = /** @type {[string, string][]} */ ([["-1", "all seeds, by rank"], ...data.seeds.map((one, at) => [String(at), `seed ${one}, by client`])]);
  root.append(h("div", { class: "controls" },
    menu("Of", data.clients <= 100 ? choices : choices.slice(0, 1), (value) => { seed = Number(value); draw(); }),
    button("CSV", () => downloadCsv([["policy", ...values(0).map((_, at) => at + Number(seed < 0))], ...policies.map((policy, at) => [policy, ...values(at)])], "served"))),
  wide, note);

  function draw() {
    const low = css("--empty"), high = css("--full"), first = Number(seed < 0), what = seed < 0 ? "rank" : "client";
    const heads = values(0).map((_, at) => h("th", { scope: "col" }, String(at + first)));
    const rows = policies.map((policy, at) => h("tr", {}, h("th", { scope: "row", class: "name" }, policy),
      ...values(at).map((share, column) => {
        const ground = mixed(low, high, share / 100);
        const cell = h("td", { "data-hint": `${policy}, ${what} ${column + first}: ${shown(share, 0)} % of rounds` }, shown(share, 0));
        cell.style.background = `rgb(${ground})`;
        cell.style.color = readable(ground);
        return cell;
      })));
    wide.replaceChildren(h("table", { class: "heat" }, h("thead", {}, h("tr", {}, h("th", { class: "name", scope: "col" }, what), ...heads)), h("tbody", {}, ...rows)));
    note.textContent = seed < 0
      ? "% of rounds in which a client delivered. Rank 1 is the client served most, seed by seed; mean over seeds."
      : "% of rounds in which each client delivered in this seed.";
  }
  REDRAWN.push(draw);
  draw();
}

/** Where clients walked and in which rounds they delivered, for one policy. @param {HTMLElement} root @param {Comparison} data @param {number} policy @param {{seed: number, drawn: (() => void)[]}} shared */
function cellMap(root, data, policy, shared) {
  const { policies, walk, delivered, side, shares } = data.served;
  const box = h("div", { class: "plot" }), note = h("p", { class: "quiet small" });
  const choice = menu("Policy", policies.map((name, at) => [String(at), name]), (value) => { policy = Number(value); draw(); });
  choice.querySelector("select").value = String(policy);
  const table = () => [["round", "client", "x_m", "y_m", "delivered"], ...data.served.rounds.flatMap((round, step) => walk[shared.seed][step].map(
    ([x, y], client) => [round, client, x, y, Number(delivered[policy][shared.seed][step].includes(client))]))];
  root.append(h("div", { class: "controls" }, choice, downloads(() => box.querySelector("svg"), table, () => `map-${policies[policy]}`)), box, note);

  function draw() {
    const width = Math.min(Math.max(260, box.clientWidth), 900), height = width * 0.88, scale = width / (2.08 * side);
    const px = (/** @type {number} */ x) => width / 2 + x * scale, py = (/** @type {number} */ y) => height / 2 - y * scale;
    const corners = Array.from({ length: 6 }, (_, k) => `${px(side * Math.cos(k * Math.PI / 3))},${py(side * Math.sin(k * Math.PI / 3))}`);
    const drawing = g("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img",
      "aria-label": `the cell under ${policies[policy]}: ${shares[policy][shared.seed].map((share, client) => `client ${client} ${shown(share, 0)} %`).join(", ")}` });
    drawing.append(g("polygon", { points: corners.join(" "), fill: css("--empty"), stroke: css("--line") }));
    const places = walk[shared.seed], there = delivered[policy][shared.seed], small = data.clients > 15;
    for (let client = 0; client < data.clients; client += 1) {
      const path = places.map((one) => `${px(one[client][0]).toFixed(1)},${py(one[client][1]).toFixed(1)}`);
      drawing.append(g("polyline", { points: path.join(" "), fill: "none", stroke: css("--quiet"), opacity: 0.3 }));
      places.forEach((one, step) => {
        const done = there[step].includes(client);
        drawing.append(g("circle", { cx: px(one[client][0]).toFixed(1), cy: py(one[client][1]).toFixed(1), r: done ? (small ? 2.6 : 3.6) : 1.8,
          fill: done ? css("--accent") : "none", stroke: done ? "none" : css("--quiet"), opacity: done ? 0.9 : 0.6 }));
      });
    }
    drawing.append(g("path", { d: `M${px(0)},${py(0) - 10}l8,15h-16z`, fill: css("--ink") }));
    places[places.length - 1].forEach(([x, y], client) => {
      const share = shares[policy][shared.seed][client];
      drawing.append(g("g", { "data-hint": `client ${client}: ${shown(share, 0)} % of rounds`, transform: `translate(${px(x).toFixed(1)} ${py(y).toFixed(1)})` },
        g("circle", { r: small ? 8 : 10, fill: css("--panel"), stroke: css("--accent"), "stroke-width": 1.5 }),
        g("text", { y: 4, "text-anchor": "middle", "font-size": small ? 9 : 11, "font-family": "system-ui, sans-serif", fill: css("--ink") }, String(client))));
    });
    const metres = ticks(0, side / 2, 2).at[1] || side / 2;
    drawing.append(g("line", { x1: 12, x2: 12 + metres * scale, y1: height - 14, y2: height - 14, stroke: css("--ink"), "stroke-width": 2 }),
      g("text", { x: 12, y: height - 20, "font-size": 11, "font-family": "system-ui, sans-serif", fill: css("--quiet") }, `${metres} m`));
    box.replaceChildren(drawing);
    const mean = shares[policy][shared.seed].reduce((sum, one) => sum + one, 0) / 100;
    note.textContent = `${policies[policy]}: ${shown(mean, 2)} of ${data.clients} a round. Filled: delivered in that round; hollow: did not; the number is the client, where its walk ends.`;
  }
  shared.drawn.push(draw);
  keepDrawn(box, draw);
}

PARTS.comparison = (root, data) => {
  const place = (/** @type {string} */ name) => /** @type {HTMLElement} */ (root.querySelector(name));
  lineChart(place(".curves"), data.curves);
  barChart(place(".columns"), data);
  matrix(place(".matrix"), data);
  const shared = { seed: 0, drawn: /** @type {(() => void)[]} */ ([]) }, map = place(".map");
  const seeds = data.served.walk.map((/** @type {any} */ _, /** @type {number} */ at) => [String(at), `seed ${data.seeds[at]}`]);
  if (seeds.length > 1) {
    map.append(h("div", { class: "controls" }, menu("Of", seeds, (value) => { shared.seed = Number(value); shared.drawn.forEach((draw) => draw()); })));
  }
  const sides = h("div", { class: "sides" });
  map.append(sides);
  const other = Math.max(data.served.policies.indexOf("max-sum-rate"), Math.min(1, data.served.policies.length - 1));
  for (const policy of new Set([0, other])) {
    const side = h("div");
    sides.append(side);
    cellMap(side, data, policy, shared);
  }
};
