/**
 * One round in motion: sub-bands as lanes, what each client has sent, the fading, the cell.
 *
 * @typedef {{policy: string, about: string, band: string, level: string, left: string}} StoredPlay
 * @typedef {{name: string, clients: number, bands: number, slots: number, slot_ms: number, levels: (number | null)[], colours: string[], snr: number[], place: number[][], side: number, fading_db: number[], fading: string, plays: StoredPlay[]}} Round
 * @typedef {{policy: string, about: string, band: Uint8Array, level: Uint8Array, left: Uint8Array, done: number[]}} Play done: slots played when a client had delivered, Infinity if it never did
 */

const SLOTS_A_SECOND = 20; // at speed 1
const LANE = 36;

/** @param {string} text base64 */
function bytes(text) {
  return Uint8Array.from(atob(text), (one) => one.charCodeAt(0));
}

/** From deep fades to strong gains, for those who see no colours too. @param {number} share 0 to 1 */
function fadingColour(share) {
  const stops = [[30, 20, 60], [70, 50, 130], [50, 110, 150], [60, 170, 130], [180, 215, 70], [253, 240, 150]];
  const at = Math.min(0.9999, Math.max(0, share)) * (stops.length - 1), low = Math.floor(at);
  return stops[low].map((part, channel) => Math.round(part + (at - low) * (stops[low + 1][channel] - part)));
}

/** A canvas as sharp as the screen. @param {HTMLElement} box @param {number} height */
function sharpCanvas(box, height) {
  const canvas = h("canvas", { "aria-hidden": "true" }), width = Math.max(200, box.clientWidth), dots = devicePixelRatio || 1;
  canvas.width = width * dots;
  canvas.height = height * dots;
  const pen = canvas.getContext("2d");
  pen.scale(dots, dots);
  return { canvas, pen, width };
}

PARTS.round = (root, /** @type {Round} */ data) => {
  const { clients, bands, slots } = data;
  const plays = data.plays.map((play) => {
    const left = bytes(play.left);
    const done = Array.from({ length: clients }, (_, client) => {
      for (let slot = 0; slot < slots; slot += 1) if (left[slot * clients + client] === 0) return slot + 1;
      return Infinity;
    });
    return { policy: play.policy, about: play.about, band: bytes(play.band), level: bytes(play.level), left, done };
  });
  const place = /** @type {HTMLElement} */ (root.querySelector(".player"));
  const state = { slot: 0, playing: false, speed: 1, last: 0 };

  const toggle = button("▶ Play", () => play(!state.playing), { class: "play", "aria-pressed": "false" });
  const range = h("input", { type: "range", min: 0, max: slots, step: 1, value: 0, "aria-label": "Slot", oninput: () => { const asked = Number(range.value); play(false); go(asked); } });
  const clock = h("output", { class: "clock" }), told = h("p", { class: "unseen", "aria-live": "polite" });
  const speeds = /** @type {[string, string][]} */ ([["0.25", "¼ ×"], ["0.5", "½ ×"], ["1", "1 ×"], ["2", "2 ×"], ["4", "4 ×"]]);
  const speed = menu("Speed", speeds, (value) => { state.speed = Number(value); });
  speed.querySelector("select").value = "1";
  const step = (/** @type {number} */ by) => () => { play(false); go(Math.round(state.slot) + by); };
  place.append(h("div", { class: "controls panel steer" }, toggle,
    h("span", { class: "group", role: "group", "aria-label": "Step" },
      button("|◀", () => { play(false); go(0); }, { "aria-label": "To the first slot" }), button("◀", step(-1), { "aria-label": "One slot back", class: "back" }),
      button("▶", step(1), { "aria-label": "One slot on", class: "on" }), button("▶|", () => { play(false); go(slots); }, { "aria-label": "To the last slot" })),
    range, clock, speed), told);
  const sides = h("div", { class: "sides" });
  place.append(sides);
  const shows = plays.map((one) => playShow(sides, data, one));
  shows.push(fadingShow(place, data));

  /** @param {number} slot slots that have been played; between two while it moves */
  function go(slot) {
    state.slot = Math.min(slots, Math.max(0, slot));
    const whole = Math.floor(state.slot);
    range.value = String(whole);
    const counts = plays.map((one) => one.done.filter((end) => end <= whole).length);
    const text = `slot ${whole} of ${slots}`;
    clock.textContent = `${text} (${Math.round(whole * data.slot_ms)} ms)`;
    range.setAttribute("aria-valuetext", `${text}, ${plays.map((one, at) => `${one.policy}: ${counts[at]} delivered`).join(", ")}`);
    shows.forEach((show) => show(whole));
    place.dataset.slot = String(whole);
    if (!state.playing) told.textContent = range.getAttribute("aria-valuetext");
  }

  /** @param {boolean} on */
  function play(on) {
    state.playing = on;
    toggle.textContent = on ? "❚❚ Pause" : "▶ Play";
    toggle.setAttribute("aria-pressed", String(on));
    if (on) {
      if (state.slot >= slots) state.slot = 0;
      state.last = performance.now();
      requestAnimationFrame(move);
    } else go(Math.floor(state.slot));
  }

  /** @param {number} now */
  function move(now) {
    if (!state.playing) return;
    const passed = Math.max(0, now - state.last) / 1000;
    state.last = now;
    go(state.slot + passed * SLOTS_A_SECOND * state.speed);
    if (state.slot >= slots) play(false);
    else requestAnimationFrame(move);
  }

  place.addEventListener("keydown", (event) => {
    const target = /** @type {HTMLElement} */ (event.target);
    if (event.key === " " && !["BUTTON", "SELECT"].includes(target.tagName)) {
      event.preventDefault();
      play(!state.playing);
    }
  });
  go(slots); // how it ended; playing begins anew
};

/** One policy's round: lanes, progress and cell. @param {HTMLElement} sides @param {Round} data @param {Play} play @returns {(slot: number) => void} */
function playShow(sides, data, play) {
  const { clients, slots } = data;
  const count = h("b", { class: "count" });
  const lanes = h("div", { class: "lanes", role: "img", "aria-label": `Sub-bands of ${play.policy}, slot by slot` });
  const readout = h("p", { class: "quiet small readout" });
  const map = h("div", { class: "cell" });
  const bars = Array.from({ length: clients }, (_, client) => {
    const fill = h("i"), said = h("span", { class: "said" }), dot = h("i", { class: "dot" });
    dot.style.background = data.colours[client];
    fill.style.background = data.colours[client];
    const line = h("li", {}, dot, h("span", { class: "who" }, `${client}`), h("span", { class: "quiet snr" }, `${shown(data.snr[client], 0)} dB`), h("span", { class: "track" }, fill), said);
    return { line, fill, said };
  });
  sides.append(h("div", { class: "panel" },
    h("h3", {}, h("span", { title: play.about || null }, play.policy), " ", count),
    h("div", { class: "strip-box" }, rowNames(data.bands, LANE), lanes), readout,
    h("div", { class: "pair" }, h("ul", { class: clients > 40 ? "progress dense" : "progress", "aria-label": "What each client has sent" }, ...bars.map((one) => one.line)), map)));
  const cell = cellShow(map, data, play);
  /** @type {any} */
  let base = null;
  let now = 0;

  function draw() {
    base = drawLanes(lanes, data, play);
    show(now);
  }

  /** @param {number} slot */
  function show(slot) {
    now = slot;
    if (base) coverFuture(base, slot, slots);
    const delivered = play.done.filter((end) => end <= slot).length;
    count.textContent = `${delivered} of ${clients} delivered`;
    bars.forEach(({ line, fill, said }, client) => {
      const sent = slot ? 1 - play.left[(slot - 1) * clients + client] / 255 : 0;
      const done = play.done[client] <= slot, dbm = slot ? data.levels[play.level[(slot - 1) * clients + client]] : null;
      fill.style.width = `${100 * sent}%`;
      line.className = done ? "done" : dbm === null ? "" : "sending";
      said.textContent = done ? `✓ ${play.done[client]}` : dbm === null ? `${shown(100 * sent, 0)} %` : `band ${play.band[(slot - 1) * clients + client]} · ${dbm} dBm`;
    });
    cell(slot);
  }

  lanes.addEventListener("pointermove", (/** @type {PointerEvent} */ event) => {
    const at = lanes.getBoundingClientRect(), slot = Math.min(slots - 1, Math.max(0, Math.floor((event.clientX - at.left) / at.width * slots)));
    const band = Math.min(data.bands - 1, Math.max(0, Math.floor((event.clientY - at.top) / LANE)));
    const there = senders(data, play, slot, band).map((client) => `client ${client} at ${data.levels[play.level[slot * clients + client]]} dBm`);
    readout.textContent = `slot ${slot}, sub-band ${band}: ${there.join(" and ") || "nobody"}${there.length > 1 ? " (they disturb each other)" : ""}`;
  });
  readout.textContent = "Point at a lane to read who sends there.";
  keepDrawn(lanes, draw);
  return show;
}

/** Numbers beside the rows of a canvas, as many as there is room for. @param {number} count @param {number} high */
function rowNames(count, high) {
  const names = Array.from({ length: count }, (_, row) => h("li", {}, high >= 10 || row % 5 === 0 ? String(row) : ""));
  const list = h("ol", { class: "names", "aria-hidden": "true" }, ...names);
  list.style.gridAutoRows = `${high}px`;
  return list;
}

/** Clients that send on a sub-band in a slot. @param {Round} data @param {Play} play @param {number} slot @param {number} band */
function senders(data, play, slot, band) {
  const found = [];
  for (let client = 0; client < data.clients; client += 1) {
    const at = slot * data.clients + client;
    if (play.band[at] === band && data.levels[play.level[at]] !== null) found.push(client);
  }
  return found;
}

/** All slots of all sub-bands. @param {HTMLElement} box @param {Round} data @param {Play} play */
function drawLanes(box, data, play) {
  const { canvas, pen, width } = sharpCanvas(box, LANE * data.bands);
  const wide = width / data.slots, powers = [...new Set(data.levels.flatMap((dbm) => (dbm === null ? [] : [dbm])))].sort((a, b) => a - b);
  const hatch = h("canvas", { width: 6, height: 6 }), ink = hatch.getContext("2d");
  ink.fillStyle = css("--line");
  ink.fillRect(0, 0, 6, 6);
  ink.strokeStyle = css("--quiet");
  ink.stroke(new Path2D("M0,0L6,6M6,0L0,6"));
  pen.font = "bold 11px system-ui, sans-serif";
  pen.textAlign = "center";
  for (let band = 0; band < data.bands; band += 1) {
    const floor = (band + 1) * LANE - 3;
    pen.fillStyle = css("--empty");
    pen.fillRect(0, band * LANE + 2, width, LANE - 5);
    let from = 0, before = -1;
    for (let slot = 0; slot <= data.slots; slot += 1) {
      const there = slot < data.slots ? senders(data, play, slot, band) : [];
      const alone = there.length === 1 ? there[0] : -1;
      if (alone !== before) { // a run ends: its number, if there is room
        const middle = (from + slot) / 2 * wide;
        if (before >= 0 && (slot - from) * wide > 15) {
          pen.fillStyle = "#ffffff";
          pen.strokeStyle = "#00000099";
          pen.lineWidth = 2.5;
          pen.strokeText(String(before), middle, floor - 5);
          pen.fillText(String(before), middle, floor - 5);
        }
        from = slot;
        before = alone;
      }
      if (!there.length) continue;
      const dbm = data.levels[play.level[slot * data.clients + there[0]]];
      const share = alone >= 0 && powers.length > 1 ? powers.indexOf(Number(dbm)) / (powers.length - 1) : 1;
      const high = (LANE - 5) * (alone >= 0 ? 0.35 + 0.65 * share : 1);
      pen.fillStyle = alone >= 0 ? data.colours[alone] : pen.createPattern(hatch, "repeat") || "#999";
      pen.fillRect(slot * wide, floor - high, wide + 0.3, high);
    }
    pen.fillStyle = css("--quiet");
  }
  const live = sharpCanvas(box, LANE * data.bands);
  box.replaceChildren(live.canvas);
  live.canvas.style.height = `${LANE * data.bands}px`;
  return { drawn: canvas, pen: live.pen, width, height: LANE * data.bands };
}

/** What has been played, and a veil over what has not. @param {any} base @param {number} slot @param {number} slots */
function coverFuture({ drawn, pen, width, height }, slot, slots) {
  const at = slot / slots * width;
  pen.clearRect(0, 0, width, height);
  pen.drawImage(drawn, 0, 0, width, height);
  pen.globalAlpha = 0.86;
  pen.fillStyle = css("--panel");
  pen.fillRect(at, 0, width - at, height);
  pen.globalAlpha = 1;
  pen.fillStyle = css("--accent");
  pen.fillRect(Math.min(at, width - 2), 0, 2, height);
}

/** The cell: who sends has a line to the base station, who has delivered is lit. @param {HTMLElement} box @param {Round} data @param {Play} play @returns {(slot: number) => void} */
function cellShow(box, data, play) {
  const { side, clients } = data, size = 2.1 * side, unit = size / 300, small = clients > 15;
  const corners = Array.from({ length: 6 }, (_, k) => `${side * Math.cos(k * Math.PI / 3)},${side * Math.sin(k * Math.PI / 3)}`);
  const drawing = g("svg", { viewBox: `${-size / 2} ${-size * 0.46} ${size} ${size * 0.92}`, role: "img", class: "cell-map" },
    g("polygon", { class: "hexagon", points: corners.join(" ") }));
  const spots = data.place.map(([x, y], client) => {
    const line = g("line", { x1: 0, y1: 0, x2: x, y2: -y, stroke: data.colours[client], "stroke-width": 2.5 * unit, visibility: "hidden" });
    const disc = g("circle", { r: (small ? 8 : 11) * unit, stroke: data.colours[client], "stroke-width": 2 * unit });
    const name = g("text", { y: 4 * unit, "text-anchor": "middle", "font-size": (small ? 9 : 12) * unit, "font-family": "system-ui, sans-serif" }, String(client));
    drawing.append(line);
    return { line, disc, spot: g("g", { class: "spot", "data-client": client, transform: `translate(${x} ${-y})` }, disc, name) };
  });
  drawing.append(g("path", { class: "station", d: `M0,${-9 * unit}L${8 * unit},${7 * unit}H${-8 * unit}z` }), ...spots.map((one) => one.spot));
  box.append(drawing);
  return (slot) => {
    drawing.setAttribute("aria-label", `The cell after slot ${slot}: delivered ${play.done.flatMap((end, client) => (end <= slot ? [client] : [])).join(", ") || "nobody"}`);
    spots.forEach(({ line, disc, spot }, client) => {
      const at = (slot - 1) * clients + client, done = play.done[client] <= slot;
      const sends = slot > 0 && play.done[client] >= slot && data.levels[play.level[at]] !== null;
      line.setAttribute("visibility", sends ? "visible" : "hidden");
      spot.classList.toggle("lit", done);
      disc.style.fill = done ? data.colours[client] : "";
    });
  };
}

/** Small-scale gains, a row per client. @param {HTMLElement} place @param {Round} data @returns {(slot: number) => void} */
function fadingShow(place, data) {
  const { clients, bands, slots } = data, fading = bytes(data.fading);
  let band = 0, now = 0;
  /** @type {any} */
  let base = null;
  const high = Math.min(16, Math.max(4, Math.round(360 / clients))), strip = h("div", { class: "fading", role: "img" });
  const choices = /** @type {[string, string][]} */ ([...Array.from({ length: bands }, (_, one) => [String(one), `sub-band ${one}`]), ["-1", "best sub-band"]]);
  const [low, top] = data.fading_db, ramp = h("canvas", { width: 60, height: 1, class: "ramp" }), pen = ramp.getContext("2d");
  for (let x = 0; x < 60; x += 1) { pen.fillStyle = `rgb(${fadingColour(x / 59)})`; pen.fillRect(x, 0, 1, 1); }
  place.append(h("div", { class: "panel" }, h("h3", {}, "Fading, client by client"),
    h("div", { class: "controls" }, menu("Of", choices, (value) => { band = Number(value); draw(); }),
      h("span", { class: "quiet small scale" }, `${low} dB `, ramp, ` ${top > 0 ? "+" : ""}${top} dB around the mean`)),
    h("div", { class: "strip-box" }, rowNames(clients, high), strip)));

  function draw() {
    const dots = h("canvas", { width: slots, height: clients }), ink = dots.getContext("2d"), image = ink.createImageData(slots, clients);
    for (let slot = 0; slot < slots; slot += 1) {
      for (let client = 0; client < clients; client += 1) {
        const at = (slot * clients + client) * bands;
        const value = band >= 0 ? fading[at + band] : Math.max(...fading.subarray(at, at + bands));
        image.data.set([...fadingColour(value / 255), 255], 4 * (client * slots + slot));
      }
    }
    ink.putImageData(image, 0, 0);
    const { canvas, pen: live, width } = sharpCanvas(strip, high * clients);
    live.imageSmoothingEnabled = false;
    strip.replaceChildren(canvas);
    canvas.style.height = `${high * clients}px`;
    strip.setAttribute("aria-label", `Small-scale gain of ${clients} clients over ${slots} slots`);
    base = { drawn: dots, pen: live, width, height: high * clients };
    show(now);
  }

  /** @param {number} slot */
  function show(slot) {
    now = slot;
    if (base) coverFuture(base, slot, slots);
  }
  keepDrawn(strip, draw);
  return show;
}
