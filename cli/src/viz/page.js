"use strict";

const COLOURS = ["#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#ee8866", "#44bb99", "#99ddff",
  "#bbcc33", "#ffaabb", "#77aadd", "#aaaa00", "#882255", "#117733", "#999933"];
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

function bytes(n) {
  let unit = 0;
  while (Math.abs(n) >= 1024 && unit < 5) { n /= 1024; unit++; }
  return `${n.toFixed(unit && n < 100 ? 2 : unit ? 1 : 0)} ${UNITS[unit]}`;
}
const count = n => n.toLocaleString("en");

// Ticks at round numbers of one binary unit.
function byteTicks(low, high, wanted) {
  const unit = 1024 ** Math.max(0, Math.floor(Math.log2(Math.max(high, 1)) / 10));
  const rough = Math.max((high - low) / wanted / unit, 1e-9);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(f => f * power).find(s => s >= rough) * unit;
  const ticks = [];
  for (let at = Math.ceil(low / step) * step; at <= high; at += step) ticks.push(at);
  const decimals = Math.max(0, -Math.floor(Math.log10(step / unit) + 1e-9));
  const name = UNITS[Math.round(Math.log2(unit) / 10)];
  return ticks.map(at => [at, `${(at / unit).toFixed(decimals)} ${name}`]);
}

function start(data) {
  const at = id => document.getElementById(id);
  const { blocks, segments, curves, ranges, owners } = data;
  const last = data.moments - 1;
  const span = ranges.reduce((sum, range) => sum + range[1], 0);
  const view = { left: 0, right: Math.max(last, 1), low: 0, high: Math.max(span, 1) };
  let peak = 0;
  curves.active.forEach((n, i) => { if (n > curves.active[peak]) peak = i; });
  const reserved = curves.reserved.reduce((most, n) => Math.max(most, n), 0);
  let moment = curves.moment[peak] || 0;

  at("title").textContent = data.title;
  const figure = (name, value) => {
    at("figures").append(`${name} `, Object.assign(document.createElement("b"), { textContent: value }));
  };
  figure("peak active", bytes(curves.active[peak] || 0));
  figure("peak reserved", bytes(reserved));
  figure("ratio", curves.active[peak] ? (reserved / curves.active[peak]).toFixed(3) : "none");
  figure("events", count(last));
  figure("blocks", count(data.all_blocks) +
    (data.all_blocks > blocks.at.length ? `, of which ${count(blocks.at.length)} are drawn` : ""));
  figure("device", data.device);

  // Colours go to the largest first, so that neighbours in the table differ.
  const streams = [...new Set(blocks.stream)].sort((a, b) => a - b);
  const weight = owners.map(() => 0);
  blocks.owner.forEach((o, i) => { weight[o] += blocks.bytes[i] * (blocks.until[i] - blocks.from[i]); });
  const rank = [];
  weight.map((w, o) => [w, o]).sort((a, b) => b[0] - a[0]).forEach(([, o], i) => { rank[o] = i; });
  const streamRank = new Map(streams.map((s, i) => [s, i]));
  const key = {
    owner: i => rank[blocks.owner[i]],
    stream: i => streamRank.get(blocks.stream[i]),
    size: i => Math.floor(Math.log2(Math.max(blocks.bytes[i], 1))),
  };
  const colour = i => COLOURS[key[at("colours").value](i) % COLOURS.length];

  function address(offset) {
    for (const [first, length] of ranges) {
      if (offset < length) return "0x" + (first + offset).toString(16);
      offset -= length;
    }
    return "";
  }
  const alive = (list, i) => list.from[i] <= moment && moment < list.until[i];

  // All drawings have the same width, so that times stand above each other.
  const EDGE = { left: 80, right: 80, bottom: 34, top: 4 };

  // Charts.
  const axis = (values, more) => ({ size: 80, values, ...more });
  const byteAxis = more => axis((_u, ticks) => ticks.map(n => bytes(n)), {
    splits: (_u, _axis, low, high) => byteTicks(low, high, 5).map(tick => tick[0]),
    values: (u, _ticks, _axis, _space, _step) => {
      const scale = u.scales[(more && more.scale) || "y"];
      return byteTicks(scale.min, scale.max, 5).map(tick => tick[1]);
    }, ...more });
  const stepped = uPlot.paths.stepped({ align: 1 });
  const line = (label, stroke, value, more) => ({ label, stroke, width: 1.5, value: (_u, v) => v == null ? "" : value(v),
    paths: stepped, points: { show: false }, ...more });
  const time = { label: "moment (events so far)", value: (_u, v) => v == null ? "" : count(v) };
  const timeAxis = axis((_u, ticks) => ticks.map(count), { size: 34, label: "events so far", labelSize: 18 });
  let following = false;
  const charts = [];
  const chart = (id, series, axes, scales, columns) => {
    const plot = new uPlot({
      width: at(id).clientWidth, height: 190, padding: [8, axes.length > 1 ? 0 : EDGE.right, 0, 0], legend: { live: true },
      scales: { x: { time: false }, ...scales }, series: [time, ...series], axes: [timeAxis, ...axes],
      cursor: { sync: { key: "moment" }, drag: { x: true, y: false } },
      hooks: {
        setScale: [(u, scale) => {
          if (scale !== "x" || following) return;
          view.left = u.scales.x.min;
          view.right = u.scales.x.max;
          follow(u);
        }],
        ready: [u => u.over.addEventListener("click", event => {
          if (!u.select.width) go(u.posToVal(event.offsetX, "x"));
        })],
        draw: [u => {
          const x = u.valToPos(moment, "x", true);
          if (x < u.bbox.left || x > u.bbox.left + u.bbox.width) return;
          u.ctx.fillStyle = "#d00";
          u.ctx.fillRect(x, u.bbox.top, devicePixelRatio, u.bbox.height);
        }],
      },
    }, [curves.moment, ...columns], at(id));
    charts.push(plot);
  };
  const largest = curves.largest_free;
  const idle = curves.reserved.map((n, i) => n ? (1 - curves.active[i] / n) * 100 : 0);
  chart("memory", [
    line("reserved", "#888", bytes, { fill: "#8882" }),
    line("active (live)", "#4477aa", bytes, { fill: "#4477aa44" }),
  ], [byteAxis()], { y: { range: (_u, _low, high) => [0, high * 1.05 || 1] } }, [curves.reserved, curves.active]);
  chart("fragmentation", [
    line("1 − active/reserved", "#ee6677", v => v.toFixed(1) + " %", { scale: "%" }),
    line("largest free block", "#228833", bytes, { scale: "y" }),
  ], [
    axis((_u, ticks) => ticks.map(v => v + " %"), { scale: "%" }),
    byteAxis({ side: 1, grid: { show: false } }),
  ], { "%": { range: [0, 100] }, y: { range: (_u, _low, high) => [0, high * 1.05 || 1] } }, [idle, largest]);

  function follow(leader) {
    following = true;
    for (const plot of charts) {
      if (plot !== leader) plot.setScale("x", { min: view.left, max: view.right });
    }
    following = false;
    draw();
  }

  // The map of addresses over time.
  function surface(canvas, height) {
    const scale = devicePixelRatio, width = canvas.clientWidth;
    canvas.style.height = height + "px";
    canvas.width = width * scale;
    canvas.height = height * scale;
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    pen.clearRect(0, 0, width, height);
    pen.font = "11px system-ui, sans-serif";
    return { pen, width, height };
  }
  const HEIGHT = 420;
  function frame() {
    const width = at("map").clientWidth - EDGE.left - EDGE.right, height = HEIGHT - EDGE.top - EDGE.bottom;
    const x = m => EDGE.left + (m - view.left) / (view.right - view.left) * width;
    const y = o => EDGE.top + height - (o - view.low) / (view.high - view.low) * height;
    return { width, height, x, y,
      momentAt: px => view.left + (px - EDGE.left) / width * (view.right - view.left),
      offsetAt: py => view.low + (EDGE.top + height - py) / height * (view.high - view.low) };
  }
  // The picture without the moment, which alone changes while one looks through time.
  const picture = document.createElement("canvas");
  let stale = true;
  function drawMap() {
    const canvas = at("map");
    if (stale) {
      paintMap();
      picture.width = canvas.width;
      picture.height = canvas.height;
      picture.getContext("2d").drawImage(canvas, 0, 0);
      stale = false;
    }
    const { pen, width, height } = surface(canvas, HEIGHT);
    pen.drawImage(picture, 0, 0, width, height);
    if (moment < view.left || moment > view.right) return;
    pen.fillStyle = "#d00";
    pen.fillRect(frame().x(moment), EDGE.top, 1, frame().height);
  }
  function paintMap() {
    const { pen } = surface(at("map"), HEIGHT);
    const f = frame();
    pen.save();
    pen.beginPath();
    pen.rect(EDGE.left, EDGE.top, f.width, f.height);
    pen.clip();
    const boxes = (list, paint, thinnest) => {
      for (let i = 0; i < list.at.length; i++) {
        if (list.until[i] < view.left || list.from[i] > view.right) continue;
        if (list.at[i] > view.high || list.at[i] + list.bytes[i] < view.low) continue;
        const left = f.x(list.from[i]), top = f.y(list.at[i] + list.bytes[i]);
        paint(i, left, top, Math.max(f.x(list.until[i]) - left, thinnest),
          Math.max(f.y(list.at[i]) - top, thinnest));
      }
    };
    pen.fillStyle = "#dcdcdc";
    boxes(segments, (_i, x, y, w, h) => pen.fillRect(x, y, w, h), 0.5);
    boxes(blocks, (i, x, y, w, h) => {
      pen.fillStyle = colour(i);
      pen.fillRect(x, y, w, h);
      if (w > 4 && h > 3) { pen.strokeStyle = "#fff8"; pen.lineWidth = 0.5; pen.strokeRect(x, y, w, h); }
      if (blocks.let_go[i] < blocks.until[i]) {
        const from = f.x(blocks.let_go[i]);
        pen.fillStyle = "#0006";
        pen.fillRect(from, y, f.x(blocks.until[i]) - from, h);
      }
    }, 0.5);
    // Between ranges lie addresses that were never reserved.
    let below = 0;
    pen.fillStyle = "#0004";
    for (const [, length] of ranges) {
      if (below && ranges.length < 200) pen.fillRect(EDGE.left, f.y(below), f.width, 0.5);
      below += length;
    }
    pen.restore();
    pen.strokeStyle = "#999";
    pen.strokeRect(EDGE.left, EDGE.top, f.width, f.height);
    pen.fillStyle = "#222";
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    for (const [offset, name] of byteTicks(view.low, view.high, 8)) {
      const y = f.y(offset);
      pen.fillText(name, EDGE.left - 6, y);
      pen.fillRect(EDGE.left - 4, y, 4, 1);
    }
    pen.textAlign = "center";
    const wide = (view.right - view.left) / 10, power = 10 ** Math.floor(Math.log10(Math.max(wide, 1)));
    const step = [1, 2, 5, 10].map(n => n * power).find(n => n >= wide) || power;
    for (let m = Math.ceil(view.left / step) * step; m <= view.right; m += step) {
      pen.fillText(count(m), f.x(m), HEIGHT - EDGE.bottom + 12);
      pen.fillRect(f.x(m), HEIGHT - EDGE.bottom, 1, 4);
    }
    pen.fillText("events so far", EDGE.left + f.width / 2, HEIGHT - 7);
    pen.save();
    pen.translate(10, EDGE.top + f.height / 2);
    pen.rotate(-Math.PI / 2);
    pen.fillText(ranges.length > 1 ? `address (${count(ranges.length)} ranges, joined)` : "address", 0, 0);
    pen.restore();
  }

  // The same at one moment, in rows.
  const ROWS = 12, ROW = 16, GAP = 5;
  function rows() {
    const width = at("strip").clientWidth - EDGE.left - EDGE.right;
    return { width, per: Math.max(span / ROWS, 1) };
  }
  function drawStrip() {
    const { pen } = surface(at("strip"), ROWS * (ROW + GAP) + 4);
    const { width, per } = rows();
    const bar = (offset, length, paint) => {
      while (length > 0) {
        const row = Math.min(Math.floor(offset / per), ROWS - 1);
        const part = row === ROWS - 1 ? length : Math.min(length, (row + 1) * per - offset);
        if (part <= 0) return;
        paint(EDGE.left + (offset - row * per) / per * width, row * (ROW + GAP) + 2, part / per * width);
        offset += part;
        length -= part;
      }
    };
    pen.fillStyle = "#dcdcdc";
    for (let i = 0; i < segments.at.length; i++) {
      if (!alive(segments, i)) continue;
      bar(segments.at[i], segments.bytes[i], (x, y, w) => {
        pen.fillRect(x, y, w, ROW);
      });
    }
    for (let i = 0; i < blocks.at.length; i++) {
      if (!alive(blocks, i)) continue;
      bar(blocks.at[i], blocks.bytes[i], (x, y, w) => {
        pen.fillStyle = colour(i);
        pen.fillRect(x, y, Math.max(w - (w > 3 ? 0.5 : 0), 0.5), ROW);
        if (blocks.let_go[i] <= moment) { pen.fillStyle = "#0006"; pen.fillRect(x, y, w, ROW); }
      });
    }
    pen.strokeStyle = "#555";
    pen.lineWidth = 0.5;
    if (segments.at.length < 5000) {
      for (let i = 0; i < segments.at.length; i++) {
        if (!alive(segments, i)) continue;
        bar(segments.at[i], segments.bytes[i], (x, y, w) => { if (w > 8) pen.strokeRect(x, y, w, ROW); });
      }
    }
    pen.fillStyle = "#222";
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    for (let row = 0; row < ROWS; row++) {
      pen.fillText(bytes(row * per), EDGE.left - 6, row * (ROW + GAP) + 2 + ROW / 2);
    }
  }

  function drawOwners() {
    const sums = new Map();
    let all = 0;
    for (let i = 0; i < blocks.at.length; i++) {
      if (!alive(blocks, i)) continue;
      const sum = sums.get(blocks.owner[i]) || [0, 0];
      sums.set(blocks.owner[i], [sum[0] + blocks.bytes[i], sum[1] + 1]);
      all += blocks.bytes[i];
    }
    const table = at("owners");
    table.replaceChildren();
    const row = (cells, tag) => {
      const tr = table.insertRow();
      for (const cell of cells) {
        const td = document.createElement(tag);
        td.append(cell);
        tr.append(td);
      }
      return tr;
    };
    row(["call site, or size where none is known", "bytes", "blocks", "share", ""], "th");
    const sorted = [...sums].sort((a, b) => b[1][0] - a[1][0]);
    for (const [owner, [size, number]] of sorted.slice(0, 20)) {
      const bar = document.createElement("div");
      bar.style.width = `${size / sorted[0][1][0] * 100}%`;
      bar.style.background = at("colours").value === "owner" ? COLOURS[rank[owner] % COLOURS.length] : "#888";
      const tr = row([owners[owner], bytes(size), count(number), (size / all * 100).toFixed(1) + " %", bar], "td");
      tr.lastChild.className = "bar";
    }
    if (sorted.length > 20) row([`${count(sorted.length - 20)} more`, "", "", "", ""], "td");
    if (!sorted.length) row(["nothing is live", "", "", "", ""], "td");
  }

  // Everything is drawn once a frame at most.
  let waiting = false;
  function draw(anew = true) {
    stale ||= anew;
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      drawMap();
      drawStrip();
      drawOwners();
    });
  }
  function go(to) {
    moment = Math.max(0, Math.min(last, Math.round(to)));
    at("slider").value = at("number").value = moment;
    charts.forEach(plot => plot.redraw(false, false));
    draw(false);
  }

  // What the pointer is on.
  function describe(i) {
    const end = blocks.until[i] > last ? "to the end" : `to ${count(blocks.until[i])}`;
    const lines = [
      `block at ${address(blocks.at[i])}, ${bytes(blocks.bytes[i])} (${count(blocks.bytes[i])} bytes)`,
      `stream ${blocks.stream[i]}`,
      `owner ${owners[blocks.owner[i]]}`,
      `from ${count(blocks.from[i])} ${end}`,
    ];
    if (blocks.let_go[i] < blocks.until[i]) lines.push(`let go at ${count(blocks.let_go[i])}, other streams use it`);
    return lines.join("\n");
  }
  function describeSegment(i) {
    return `reserved, free; ${bytes(segments.bytes[i])} from the driver at ${address(segments.at[i])}\n` +
      `from ${count(segments.from[i])} ${segments.until[i] > last ? "to the end" : "to " + count(segments.until[i])}`;
  }
  function find(m, offset) {
    const hit = list => {
      for (let i = 0; i < list.at.length; i++) {
        if (list.from[i] <= m && m < list.until[i] && list.at[i] <= offset && offset < list.at[i] + list.bytes[i]) {
          return i;
        }
      }
      return -1;
    };
    const block = hit(blocks);
    if (block >= 0) return describe(block);
    const segment = hit(segments);
    return segment >= 0 ? describeSegment(segment) : "not reserved";
  }
  function show(event, text) {
    const box = at("details");
    box.style.display = text ? "block" : "none";
    box.textContent = text;
    box.style.left = Math.min(event.clientX + 14, innerWidth - box.offsetWidth - 8) + "px";
    box.style.top = Math.min(event.clientY + 14, innerHeight - box.offsetHeight - 8) + "px";
  }
  const map = at("map"), strip = at("strip");
  let drag = null;
  map.addEventListener("mousedown", event => {
    drag = { x: event.offsetX, y: event.offsetY, moved: false, ...view };
  });
  addEventListener("mouseup", event => {
    if (drag && !drag.moved && event.target === map) go(frame().momentAt(event.offsetX));
    drag = null;
  });
  map.addEventListener("mousemove", event => {
    const f = frame();
    if (drag) {
      const dx = (event.offsetX - drag.x) / f.width * (drag.right - drag.left);
      const dy = (event.offsetY - drag.y) / f.height * (drag.high - drag.low);
      drag.moved ||= Math.hypot(event.offsetX - drag.x, event.offsetY - drag.y) > 3;
      if (drag.moved) look(drag.left - dx, drag.right - dx, drag.low + dy, drag.high + dy);
      return;
    }
    show(event, find(f.momentAt(event.offsetX), f.offsetAt(event.offsetY)));
  });
  strip.addEventListener("mousemove", event => {
    const { width, per } = rows();
    const row = Math.floor(event.offsetY / (ROW + GAP)), along = (event.offsetX - EDGE.left) / width;
    show(event, along >= 0 && along <= 1 && row < ROWS ? find(moment, (row + along) * per) : "");
  });
  for (const canvas of [map, strip]) canvas.addEventListener("mouseleave", event => show(event, ""));
  map.addEventListener("wheel", event => {
    event.preventDefault();
    const f = frame(), by = 1.2 ** Math.sign(event.deltaY || event.deltaX);
    if (event.shiftKey) {
      const o = f.offsetAt(event.offsetY);
      look(view.left, view.right, o - (o - view.low) * by, o + (view.high - o) * by);
    } else {
      const m = f.momentAt(event.offsetX);
      look(m - (m - view.left) * by, m + (view.right - m) * by, view.low, view.high);
    }
  }, { passive: false });
  // Stays within what there is, and as wide as asked where that is possible.
  function within(low, high, least, most) {
    const wide = Math.min(Math.max(high - low, least), most);
    const from = Math.max(0, Math.min(low, most - wide));
    return [from, from + wide];
  }
  function look(left, right, low, high) {
    [view.left, view.right] = within(left, right, 4, Math.max(last, 4));
    [view.low, view.high] = within(low, high, 4096, Math.max(span, 4096));
    follow(null);
  }
  at("slider").max = at("number").max = last;
  at("slider").addEventListener("input", event => go(+event.target.value));
  at("number").addEventListener("change", event => go(+event.target.value));
  at("colours").addEventListener("change", () => draw());
  at("peak").addEventListener("click", () => go(curves.moment[peak] || 0));
  at("whole").addEventListener("click", () => look(0, last, 0, span));
  addEventListener("resize", () => {
    for (const [i, id] of ["memory", "fragmentation"].entries()) {
      charts[i].setSize({ width: at(id).clientWidth, height: 190 });
    }
    draw();
  });
  go(moment);
}
