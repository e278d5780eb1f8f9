'use strict';
// Draws what the program collected. Plain SVG; no network, no storage.
const kernels = JSON.parse(document.getElementById('data').textContent);
const SVG = 'http://www.w3.org/2000/svg';

function el(name, attributes, ...children) {
  const e = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key in e && typeof value === 'function') e[key] = value; else e.setAttribute(key, value);
  }
  e.append(...children);
  return e;
}

function svg(name, attributes, text) {
  const e = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) e.setAttribute(key, value);
  if (text !== undefined) e.textContent = text;
  return e;
}

const us = ns => (ns / 1000).toFixed(2) + ' us';
const percent = part => (100 * part).toFixed(1) + ' %';

// The bar that ended a wait, where that is known: the engine's copy or product that was done last by then, or the only other warp that ran.
function origin(time, ptx, bar) {
  const [row, start, length, , , by] = bar;
  if (!by) return null;
  const end = start + length, cta = time.rows[row].split(' ').slice(0, 2).join(' ');
  const text = ptx[by - 1] || '';
  const engine = /cp\.async\.bulk|cp\.reduce/.test(text) ? 'TMA' : /commit|wgmma|mma/.test(text) ? 'tensor core' : null;
  let best = null, warps = new Set();
  for (const other of time.bars) {
    const name = time.rows[other[0]];
    if (other[0] === row || time.kinds[other[3]][0] === 'waits') continue;
    const done = other[1] + other[2];
    if (engine && name.endsWith(engine) && done <= end + 1 && done > end - 2000) {
      const near = name.startsWith(cta) ? 0.5 : 0;
      if (!best || done + near > best.at) best = { row: other[0], time: done, at: done + near };
    } else if (!engine && name.includes('warp') && other[1] <= end && done >= start) {
      warps.add(other[0]);
    }
  }
  if (best) return best;
  return warps.size === 1 ? { row: [...warps][0], time: end } : null;
}

function timeline(kernel, launch, select) {
  const time = launch.time.Ok, ROW = 18, LEFT = 190, WIDTH = 1000, TOP = 18;
  const last = time.bars.reduce((end, b) => Math.max(end, b[1] + b[2]), 1);
  let from = 0, to = last;
  const height = TOP + ROW * time.rows.length + 6;
  const box = svg('svg', { viewBox: `0 0 ${WIDTH} ${height}`, class: 'timeline', 'data-rows': time.rows.length });
  const arrows = el('input', { type: 'checkbox' });
  const shown = el('span', { class: 'note' });
  const x = t => LEFT + (t - from) / (to - from) * (WIDTH - LEFT - 6);

  function draw() {
    box.replaceChildren();
    const pixel = (to - from) / (WIDTH - LEFT);
    const step = [1, 2, 5].flatMap(m => [1, 10, 100, 1000, 10000, 1e5, 1e6].map(p => m * p)).sort((a, b) => a - b)
      .find(s => (to - from) / s <= 12) || 1e7;
    for (let t = Math.ceil(from / step) * step; t <= to; t += step) {
      box.append(svg('line', { x1: x(t), x2: x(t), y1: TOP - 4, y2: height, stroke: '#ddd' }));
      box.append(svg('text', { x: x(t) + 2, y: 11, fill: '#666' }, step >= 100 ? us(t) : t.toFixed(0) + ' ns'));
    }
    time.rows.forEach((name, row) => box.append(svg('text', { x: 4, y: TOP + ROW * row + 12 }, name)));
    let drawn = 0, previous = null;
    const waits = [];
    for (const bar of time.bars) {
      const [row, start, length, kind, line] = bar;
      if (start + length < from || start > to) continue;
      if (bar[5]) waits.push(bar);
      // Bars of a kind that touch at this scale are one.
      if (previous && previous.row === row && previous.kind === kind && start <= previous.end + 0.5 * pixel && length < 3 * pixel) {
        previous.end = Math.max(previous.end, start + length);
        previous.e.setAttribute('width', Math.max(0.4, x(Math.min(previous.end, to)) - x(Math.max(previous.start, from))));
        continue;
      }
      const [left, right] = [x(Math.max(start, from)), x(Math.min(start + length, to))];
      const e = svg('rect', { x: left, y: TOP + ROW * row + 1, width: Math.max(0.4, right - left), height: ROW - 4, fill: time.kinds[kind][1] });
      const ended = bar[5] ? `, ended by line ${bar[5]}: ${(kernel.ptx[bar[5] - 1] || '').trim()}` : '';
      const at = line ? `, line ${line}: ${(kernel.ptx[line - 1] || '').trim()}` : '';
      e.append(svg('title', {}, `${time.kinds[kind][0]}, ${start.toFixed(0)} to ${(start + length).toFixed(0)} ns${at}${ended}`));
      if (line) e.addEventListener('click', () => select(line));
      box.append(e);
      previous = { row, kind, start, end: start + length, e };
      drawn++;
    }
    if (arrows.checked) {
      let missing = 0, count = 0;
      for (const bar of waits.slice(0, 400)) {
        const source = origin(time, kernel.ptx, bar), end = bar[1] + bar[2];
        if (end < from || end > to) continue;
        if (!source) { missing++; continue; }
        const [x1, y1, x2, y2] = [x(source.time), TOP + ROW * source.row + 8, x(end), TOP + ROW * bar[0] + 8];
        const head = y2 > y1 ? -5 : 5;
        box.append(svg('path', { d: `M${x1} ${y1}L${x2} ${y2}m-3 ${head}l3 ${-head}l3 ${head}`, fill: 'none', stroke: '#a3201a', class: 'arrow' }));
        count++;
      }
      shown.textContent = `${count} arrows: from what completed a phase to the warp that waited; ${missing} waits have several candidates` +
        (waits.length > 400 ? '; zoom in for more' : '');
    } else {
      shown.textContent = `${us(from)} to ${us(to)}; wheel: zoom, drag: move, click: line`;
    }
    box.dataset.drawn = drawn;
  }

  function zoom(factor, around) {
    const span = Math.min(last, Math.max(20, (to - from) * factor));
    from = Math.max(0, Math.min(last - span, around - (around - from) * span / (to - from)));
    to = from + span;
    draw();
  }
  const at = event => {
    const bounds = box.getBoundingClientRect();
    return from + Math.max(0, (event.clientX - bounds.left) / bounds.width * WIDTH - LEFT) / (WIDTH - LEFT - 6) * (to - from);
  };
  box.addEventListener('wheel', event => { event.preventDefault(); zoom(event.deltaY > 0 ? 1.25 : 0.8, at(event)); }, { passive: false });
  let grabbed = null;
  box.addEventListener('pointerdown', event => { grabbed = { time: at(event), x: event.clientX }; });
  window.addEventListener('pointerup', () => { grabbed = null; });
  box.addEventListener('pointermove', event => {
    if (!grabbed || Math.abs(event.clientX - grabbed.x) < 3) return;
    const move = grabbed.time - at(event), span = to - from;
    from = Math.max(0, Math.min(last - span, from + move));
    to = from + span;
    draw();
  });
  arrows.onchange = draw;
  const reset = () => { from = 0; to = last; draw(); };
  const controls = el('div', {},
    el('button', { onclick: () => zoom(0.5, (from + to) / 2) }, 'in'), el('button', { onclick: () => zoom(2, (from + to) / 2) }, 'out'),
    el('button', { onclick: reset }, 'all'), el('label', {}, arrows, 'arrows'), shown);
  const legend = el('div', { class: 'legend' }, ...time.kinds.map(([name, fill]) => el('span', {}, el('i', { style: `background:${fill}` }), name)));
  const wanted = new URLSearchParams(location.hash.slice(1));
  if (wanted.has('from')) { from = Math.min(last, +wanted.get('from')); to = Math.min(last, Math.max(from + 20, +wanted.get('to'))); }
  arrows.checked = wanted.has('arrows');
  draw();
  return [controls, box, legend];
}

function code(kernel, launch) {
  const body = el('tbody', {}), rows = [];
  const lines = launch.time.Ok ? launch.time.Ok.lines : {};
  const hottest = Math.max(1e-9, ...Object.values(lines));
  const found = {};
  for (const finding of launch.findings || []) (found[finding.line] = found[finding.line] || []).push(finding);
  kernel.ptx.forEach((text, index) => {
    const line = index + 1, share = lines[line] || 0, cost = launch.costs[line], machine = launch.sass && launch.sass[line];
    const heat = el('td', { class: 'number heat' }, share >= 0.0005 ? percent(share) : '');
    if (share) heat.style.backgroundImage = `linear-gradient(90deg,#f2a541 ${100 * share / hottest}%,transparent 0)`;
    const row = el('tr', {}, el('td', { class: 'number' }, String(line)), heat,
      el('td', { class: 'number' }, cost ? `${cost[0]} / ${cost[1]}` : ''), el('td', { class: 'ptx' }, text),
      el('td', { class: 'machine' }, machine ? machine.join('\n') : ''));
    if (found[line]) {
      row.className = found[line].every(f => f.warning) ? 'warning' : 'finding';
      row.title = found[line].map(f => `${f.kind}: ${f.message}`).join('\n');
    }
    rows.push(row);
    body.append(row);
  });
  const head = el('thead', {}, el('tr', {}, ...['line', 'time of warps', 'slots / clocks', 'PTX', 'SASS [stall]'].map(t => el('th', {}, t))));
  const box = el('div', { class: 'code' }, el('table', {}, head, body));
  const select = line => {
    rows.forEach(row => row.classList.remove('hit'));
    const row = rows[line - 1];
    if (!row) return;
    row.classList.add('hit');
    box.scrollTop = row.offsetTop - box.clientHeight / 3;
  };
  // The line where warps spend most of their time, once the page has a layout.
  const first = Object.entries(lines).reduce((best, entry) => entry[1] > best[1] ? entry : best, [0, 0])[0];
  requestAnimationFrame(() => select(+(new URLSearchParams(location.hash.slice(1)).get('line') || first)));
  return { box, select };
}

function findings(launch, select) {
  if (!launch.findings) return [el('p', { class: 'note' }, 'not run: findings are not known')];
  if (!launch.findings.length) return [el('p', { class: 'right' }, 'none: values are defined, and accesses are ordered, in the schedule that ran')];
  return launch.findings.map(f => el('p', { class: f.warning ? 'note' : 'wrong' },
    el('button', { onclick: () => select(f.line) }, `line ${f.line}`), `${f.kind}: ${f.message} (${f.place}${f.count > 1 ? `, ${f.count} times` : ''})`));
}

function knobs(kernel, other) {
  const theirs = Object.fromEntries((other ? other.knobs : []).map(([name, value]) => [name, value]));
  const rows = kernel.knobs.map(([name, value, rule]) =>
    el('tr', other && theirs[name] !== value ? { class: 'differs' } : {}, el('td', {}, name), el('td', {}, value), el('td', {}, rule)));
  return el('table', { class: 'knobs' }, el('tbody', {}, ...rows));
}

function show(kernel, other) {
  const parts = [el('h1', {}, kernel.name), el('p', { class: 'note' }, kernel.about)];
  for (const launch of kernel.launches) {
    const { box, select } = code(kernel, launch);
    parts.push(el('h2', {}, `Time: ${launch.entry}`));
    if (launch.time.Ok) {
      const t = launch.time.Ok;
      parts.push(el('p', {}, el('b', {}, us(t.time)), ` a launch, predicted on ${t.chip} at ${t.clock.toFixed(0)} MHz; not measured. Issue costs by ${launch.issue}.`));
      parts.push(...timeline(kernel, launch, select));
      parts.push(el('p', {}, 'critical path: ' + t.path.slice(0, 6).map(([name, ns]) => `${name} ${us(ns)}`).join(', ')));
      parts.push(el('p', {}, 'busy: ' + t.shares.filter(s => s[1] >= 0.005).map(([name, used]) => `${name} ${percent(used)}`).join(', ')));
    } else {
      parts.push(el('p', { class: 'wrong' }, launch.time.Err));
    }
    parts.push(el('h2', {}, 'Findings'), ...findings(launch, select));
    parts.push(el('h2', {}, 'PTX beside SASS'));
    if (!launch.sass) parts.push(el('p', { class: 'note' }, `no SASS: issue costs by ${launch.issue}`));
    parts.push(box);
  }
  if (kernel.pictures.length) {
    parts.push(el('h2', {}, 'Memory, and who waits for whom'));
    for (const picture of kernel.pictures) {
      const box = el('div', { class: 'picture' });
      box.innerHTML = picture;
      parts.push(box);
    }
  }
  if (kernel.knobs.length) parts.push(el('h2', {}, 'Knobs, and the rules that chose them'), knobs(kernel, other));
  return el('section', { class: 'kernel' }, ...parts);
}

kernels.forEach((kernel, index) => document.getElementById('kernels').append(show(kernel, kernels.length > 1 ? kernels[1 - index] : null)));
