"use strict";
// Draws the report from the JSON block. Names from the cache reach the page as text nodes, or,
// where plotly reads a little HTML, through plain(), which leaves none.
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const all = data.entries;
const count = all.size.length;
const element = (id) => document.getElementById(id);
const plain = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
const hash = (i) => all.hash.slice(12 * i, 12 * i + 12);
const sum = (values) => values.reduce((total, value) => total + value, 0);
const DAY = 86400;

const bytes = (value) => {
  let unit = 0;
  while (value >= 1000 && unit < 4) { value /= 1000; unit += 1; }
  return `${unit ? value.toFixed(1).replace(".0", "") : Math.round(value)} ${["B", "kB", "MB", "GB", "TB"][unit]}`;
};
const duration = (value) => {
  if (value === null) return "unknown";
  if (value < 60) return value < 9.95 ? `${value.toFixed(1)} s` : `${Math.round(value)} s`;
  const whole = Math.round(value);
  for (const [size, unit, small, rest] of
    [[DAY, "d", 3600, "h"], [3600, "h", 60, "m"], [60, "m", 1, "s"]]) {
    if (whole >= size) {
      const left = Math.floor((whole % size) / small);
      return `${Math.floor(whole / size)}${unit}${left ? ` ${left}${rest}` : ""}`;
    }
  }
  return "";
};
const took = (i) => (all.seconds[i] === 0 ? "under 1 s" : duration(all.seconds[i]));
const ago = (then) => {
  const age = data.made - then;
  return age < 60 ? "just now" : `${duration(age).split(" ")[0]} ago`;
};
const number = (value) => value.toLocaleString("en");
const plural = (value, one, many) => `${number(value)} ${value === 1 ? one : many}`;
const entriesText = (value) => plural(value, "entry", "entries");

const make = (tag, text, name) => {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (name) made.className = name;
  return made;
};

const COLORS = { cpu: "#0b7a75", gpu: "#5b5bd6", tpu: "#c2570c", unknown: "#8a94a0" };
const font = { family: 'system-ui, "Segoe UI", "DejaVu Sans", sans-serif', size: 13,
  color: "#1c2733" };
const axis = { gridcolor: "#e8edf1", zeroline: false, linecolor: "#c9d2da", ticks: "outside",
  tickcolor: "#c9d2da", automargin: true };
const layout = (more) => ({ font, margin: { l: 70, r: 40, t: 54, b: 50 }, paper_bgcolor: "#fff",
  plot_bgcolor: "#fff", hoverlabel: { align: "left", font: { size: 13 } }, hovermode: "closest",
  legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", itemsizing: "constant" }, ...more });
const config = { displaylogo: false, displayModeBar: "hover", responsive: true,
  modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]] };
// Without plotly, two charts are plain bars, and the others are left out.
const charts = typeof Plotly !== "undefined";
document.documentElement.className = charts ? "charts" : "plain";
const draw = (id, traces, more, tools = config) =>
  charts && Plotly.react(element(id), traces, layout(more), tools);
const nothing = (id, text) => { element(id).replaceChildren(make("p", text)); };
const bars = (id, found) => {
  const most = Math.max(...found.map(([, value]) => value));
  element(id).replaceChildren(...found.map(([label, value, text]) => {
    const line = make("div", undefined, "bar"), bar = make("i");
    bar.style.width = `${most ? (100 * value) / most : 0}%`;
    line.append(make("span", label, "name"), bar, make("span", text));
    return line;
  }));
};

// Ticks of a logarithmic axis, at round values of a unit.
const ticks = (values, label) => ({ tickvals: values, ticktext: values.map(label) });
const powers = (low, high) => {
  const found = [];
  const steps = high / low > 1000 ? [1] : [1, 2, 5];
  for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e += 1) {
    found.push(...steps.map((step) => step * 10 ** e));
  }
  return found.some((value) => value >= low && value <= high) ? found : [low, high];
};

// Ticks of a linear axis from 0 to top, five at the most, at round values of bytes or seconds.
const SECONDS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800,
  3600, 7200, 18000, 36000, DAY, 2 * DAY, 5 * DAY, 10 * DAY, 20 * DAY, 50 * DAY, 100 * DAY];
const round = (top, steps) => {
  const power = 10 ** Math.floor(Math.log10(top || 1));
  const all = steps || [0.2, 0.5, 1, 2, 5].map((n) => n * power);
  const step = all.find((n) => top / n <= 5) || all[all.length - 1];
  return [...Array(Math.floor(top / step) + 1).keys()].map((n) => n * step);
};
const seconds = (value) => (value && value < 1 ? `${Number(value.toPrecision(2))} s`
  : duration(value).replace(".0 s", " s"));

// Two or more buttons of which one is pressed.
const choose = (id, names, chosen, act) => {
  const buttons = Object.entries(names).map(([value, text]) => {
    const button = make("button", text);
    button.type = "button";
    button.dataset.value = value;
    button.addEventListener("click", () => { press(value); act(value); });
    return button;
  });
  const press = (value) => buttons.forEach((b) =>
    b.setAttribute("aria-pressed", String(b.dataset.value === value)));
  press(chosen);
  element(id).replaceChildren(...buttons);
};

const heading = () => {
  const t = data.totals;
  element("where").textContent =
    `${data.cache_dir} · ${new Date(data.made * 1000).toISOString().replace(".000Z", "Z")}`;
  const facts = [["entries", number(t.entries)], ["modules", number(t.modules)],
    ["size of entries", bytes(t.size)], ["cache size", bytes(t.directory)],
    ["compile time", t.unknown === t.entries && t.entries
      ? (all.seconds.includes(null) ? "not recorded" : "under 1 s each")
      : `${t.unknown ? "at least " : ""}${duration(t.seconds)}`],
    ["sealed", t.entries ? `${Math.round((100 * t.sealed) / t.entries)} %` : "–"],
    ["problems", number(t.problems)],
    ["hits", t.hits === null ? "not recorded"
      : `${number(t.hits)} of ${plural(t.hits + t.misses, "recorded request", "recorded requests")}`],
    ["saved by hits", duration(t.saved)]];
  element("totals").replaceChildren(...facts.map(([name, value]) => {
    const box = make("div");
    box.append(make("dt", name), make("dd", value));
    return box;
  }));
  element("foot").textContent = `jaxcache ${data.jaxcache}` + (data.undrawn.entries
    ? `; the ${number(data.undrawn.entries)} smallest entries (${bytes(data.undrawn.size)}) `
      + "count in every total, but are not drawn" : "");
};

// Boxes: platform, module, key. What is small is put together, so that a browser can draw it.
const MOST_MODULES = 150, MOST_KEYS = 1200;
const boxes = (measure) => {
  const value = (i) => (measure === "size" ? all.size[i] : all.seconds[i] || 0);
  const order = [...Array(count).keys()].filter((i) => value(i) > 0)
    .sort((a, b) => value(b) - value(a));
  const nodes = new Map();
  const modules = new Map();
  order.forEach((i) => {
    const id = `${all.platform[i]}/${all.module[i]}`;
    modules.set(id, (modules.get(id) || 0) + value(i));
  });
  const shown = new Set([...modules].sort((a, b) => b[1] - a[1]).slice(0, MOST_MODULES)
    .map(([id]) => id));
  const add = (id, label, parent, i) => {
    const node = nodes.get(id) || { label, parent, value: 0, keys: 0, used: 0, age: 0 };
    node.value += value(i);
    node.keys += 1;
    node.used = Math.max(node.used, all.used[i]);
    // A box of many is as dark as its keys are on average, by their share of the area.
    node.age += value(i) * Math.log10(Math.max((data.made - all.used[i]) / DAY, 1 / 24));
    nodes.set(id, node);
  };
  nodes.set("", { label: "cache", parent: null, value: 0, keys: 0, used: 0, age: 0 });
  order.forEach((i, rank) => {
    const platform = `p${all.platform[i]}`;
    const own = `${all.platform[i]}/${all.module[i]}`;
    const known = shown.has(own);
    const module = known ? `m${own}` : `${platform}/rest`;
    const key = rank < MOST_KEYS ? `k${i}` : `${module}/rest`;
    add("", "cache", null, i);
    add(platform, data.platforms[all.platform[i]], "", i);
    add(module, known ? data.modules[all.module[i]] : "other modules", platform, i);
    add(key, rank < MOST_KEYS ? data.modules[all.module[i]] : "smaller ones", module, i);
    if (rank < MOST_KEYS) nodes.get(key).entry = i;
  });
  return nodes;
};
const treemap = (measure) => {
  const nodes = [...boxes(measure)];
  if (!nodes[0][1].value) {
    nothing("treemap", measure === "size" ? "The cache is empty."
      : "Every entry took less than a second to compile.");
    return;
  }
  const chart = element("treemap");
  if (!chart.classList.contains("js-plotly-plot")) chart.replaceChildren();
  const shownValue = (v) => (measure === "size" ? bytes(v) : duration(v));
  if (!charts) {
    const modules = nodes.filter(([, n]) => /^p[0-9]+$/.test(n.parent))
      .sort(([, a], [, b]) => b.value - a.value);
    const platform = (n) => (data.platforms.length > 1 ? ` (${data.platforms[n.parent.slice(1)]})` : "");
    bars("treemap", modules.slice(0, 40).map(([, n]) =>
      [n.label + platform(n), n.value, `${shownValue(n.value)}, ${entriesText(n.keys)}`]));
    return;
  }
  const age = ([, n]) => n.age / n.value;
  draw("treemap", [{
    type: "treemap", branchvalues: "total", sort: true, maxdepth: count > 400 ? 3 : 4,
    ids: nodes.map(([id]) => id || "root"),
    labels: nodes.map(([, n]) => plain(n.label)),
    parents: nodes.map(([, n]) => (n.parent === null ? "" : n.parent || "root")),
    values: nodes.map(([, n]) => n.value),
    text: nodes.map(([, n]) => shownValue(n.value)),
    customdata: nodes.map(([, n]) => (n.entry === undefined
      ? `${shownValue(n.value)} in ${entriesText(n.keys)}, last used ${ago(n.used)}`
      : `${hash(n.entry)}, ${bytes(all.size[n.entry])}, compiled in ${took(n.entry)}<br>`
        + `written ${ago(all.created[n.entry])}, used ${ago(all.used[n.entry])}`)),
    textinfo: "label+text", hovertemplate: "<b>%{label}</b><br>%{customdata}<extra></extra>",
    tiling: { pad: 2 }, pathbar: { visible: true }, root: { color: "#eef2f5" },
    marker: { colors: nodes.map(age), cmin: Math.log10(1 / 24), cmax: 2,
      colorscale: [[0, "#e6f5f2"], [0.4, "#b5dcdb"], [0.7, "#93bfdb"], [1, "#8b9bd6"]],
      line: { width: 1, color: "#fff" }, showscale: true,
      colorbar: { title: { text: "unused for", side: "top" }, thickness: 12, len: 0.6, outlinewidth: 0,
        ...ticks([1 / 24, 1, 7, 30, 100].map(Math.log10), (v) => ({ 0: "1 day" }[v]
          || ["1 hour", "1 week", "1 month", "100 days"][[1 / 24, 7, 30, 100].map(Math.log10)
            .indexOf(v)])) } },
  }], { margin: { l: 0, r: 0, t: 0, b: 0 } }, { ...config, modeBarButtons: [["toImage"]] });
};

// A trace of dots for each platform. Entries that would be drawn in one place are one larger dot,
// because thousands of dots take seconds.
const MOST_DOTS = 1500;
const dots = (entries, place, { x, y, text, hover, sizes: [least, most], opacity }) =>
  data.platforms.map((platform, p) => {
    const groups = new Map();
    entries.filter((i) => all.platform[i] === p).forEach((i) => {
      const at = count <= MOST_DOTS ? i : place(i);
      if (groups.has(at)) groups.get(at).push(i); else groups.set(at, [i]);
    });
    const spots = [...groups.values()];
    return { type: "scatter", mode: "markers", name: plain(platform), x: spots.map(([i]) => x(i)),
      y: spots.map(([i]) => y(i)), text: spots.map(text), hovertemplate: `${hover}<extra></extra>`,
      marker: { size: spots.map((spot) => Math.min(most, least + 2 * Math.log2(spot.length))),
        opacity, line: { width: 0 }, color: COLORS[platform] || COLORS.unknown } };
  }).filter((trace) => trace.x.length);

const scatter = () => {
  if (!count) { nothing("scatter", "The cache is empty."); return; }
  const floor = 0.5; // where "under a second" is drawn, since a logarithm has no zero
  const known = [...Array(count).keys()].filter((i) => all.seconds[i] !== null);
  const whole = known.filter((i) => all.seconds[i] === 0).length;
  const unsure = whole > 0;
  element("rounded").textContent = unsure
    ? `${entriesText(whole)} took under a second, and how long is not known: drawn at the bottom.` : "";
  const height = (i) => Math.max(all.seconds[i], all.seconds[i] === 0 ? floor : 0.001);
  const one = (i) => `<b>${plain(data.modules[all.module[i]])}</b><br>${hash(i)}<br>`
    + `${bytes(all.size[i])}, compiled in ${took(i)}<br>used ${ago(all.used[i])}`;
  const many = (mine) => `${entriesText(mine.length)}<br>about ${bytes(all.size[mine[0]])}, `
    + `compiled in ${took(mine[0])} or so<br>${plain([...new Set(mine.slice(0, 99).map((i) =>
      data.modules[all.module[i]]))].slice(0, 4).join(", "))}`;
  const traces = dots(known,
    (i) => `${Math.round(Math.log10(all.size[i]) * 60)}/${Math.round(Math.log10(height(i)) * 30)}`,
    { x: (i) => all.size[i], y: height, hover: "%{text}", sizes: [6, 24], opacity: 0.6,
      text: (spot) => (spot.length === 1 ? one(spot[0]) : many(spot)) });
  const longest = Math.max(1, ...known.map((i) => all.seconds[i]));
  const lowest = Math.min(floor, ...known.map((i) => all.seconds[i]).filter((s) => s > 0));
  const sizes = known.map((i) => all.size[i]);
  const marks = [0.01, 0.1, 1, 10, 60, 600, 3600, 36000].filter((v) => v >= lowest / 2
    && v <= longest * 3 && !(unsure && v <= floor));
  if (unsure) marks.unshift(floor);
  const low = sizes.reduce((a, b) => Math.min(a, b), 1e15);
  const high = sizes.reduce((a, b) => Math.max(a, b), 1);
  draw("scatter", traces, {
    showlegend: data.platforms.length > 1,
    xaxis: { ...axis, type: "log", title: { text: "size of the entry" },
      ...ticks(powers(low, high), bytes) },
    yaxis: { ...axis, type: "log", title: { text: "compile time" },
      range: [Math.log10(lowest / 1.6), Math.log10(longest * 2)],
      ...ticks(marks, (v) => (unsure && v === floor ? "< 1 s" : seconds(v))) } });
};

const ages = () => {
  if (!count) { nothing("age", "The cache is empty."); return; }
  const ends = [[1 / 24, "under 1 h"], [1, "1 day"], [3, "3 days"], [7, "1 week"], [14, "2 weeks"],
    [30, "1 month"], [90, "3 months"], [Infinity, "longer"]];
  const bin = (then) => ends.findIndex(([end]) => (data.made - then) / DAY < end);
  const sums = (field) => {
    const found = ends.map(() => [0, 0]);
    all[field].forEach((then, i) => {
      const at = found[bin(then)];
      at[0] += all.size[i];
      at[1] += 1;
    });
    return found;
  };
  const alike = all.used.every((used, i) => used === all.created[i]);
  element("dated").textContent = alike
    ? "No use is recorded in this cache, so the two are the same." : "";
  if (!charts) {
    bars("age", sums("used").map(([size, n], i) =>
      [`used ${ends[i][1].replace(/^[0-9]/, "under $&")} ago`, size, `${bytes(size)}, ${entriesText(n)}`]));
    return;
  }
  const trace = (field, name, color) => {
    const found = sums(field);
    return { type: "bar", name, x: ends.map(([, text]) => text), y: found.map(([size]) => size),
      marker: { color }, customdata: found.map(([size, n]) => `${bytes(size)}, ${entriesText(n)}`),
      hovertemplate: `${name}: %{customdata}<extra></extra>` };
  };
  const traces = [trace("created", "written", "#b9c6d0"), trace("used", "last used", "#0b7a75")];
  const top = Math.max(...traces.flatMap((t) => t.y));
  draw("age", traces, { barmode: "group", bargap: 0.25,
    xaxis: { ...axis, title: { text: "less than … ago" } },
    yaxis: { ...axis, title: { text: "bytes", standoff: 12 }, ...ticks(round(top), bytes) } });
};

const row = (cells, tag) => {
  const made = make("tr");
  cells.forEach(([text, name]) => made.append(make(tag || "td", text, name)));
  return made;
};
let policy = "cost";
const prune = () => {
  const steps = data.prune[policy];
  const slider = element("bound");
  if (!count || !steps.length) {
    nothing("curve", count ? "Files that are not entries take more space than any limit."
      : "The cache is empty.");
    slider.disabled = true;
    return;
  }
  slider.max = steps.length - 1;
  // Largest bound to the right, as on the axis below.
  const step = steps[steps.length - 1 - Number(slider.value)];
  element("size").textContent = bytes(step.bound);
  const removed = [step.entries && `${entriesText(step.entries)} of ${number(data.totals.entries)}`,
    step.others && plural(step.others, "other file", "other files")].filter(Boolean).join(" and ");
  const share = data.totals.seconds && step.lost
    ? ` (${((100 * step.lost) / data.totals.seconds).toFixed(1)} % of all)` : "";
  const lost = `, ${step.lost ? duration(step.lost) : "under a second each"} of compile time lost${share}`;
  element("verdict").textContent = removed ? `${removed} would be removed: ${bytes(step.freed)} freed`
    + `${step.entries ? lost : ""}.` : "Nothing would be removed.";
  const caption = element("dropped").caption;
  const table = [row([["entry"], ["size", "number"], ["compile", "number"], ["used", "number"]],
    "th"), ...step.costliest.map(([name, size, seconds, used]) => row([[name, "name"],
    [bytes(size), "number"], [seconds === 0 ? "< 1 s" : duration(seconds), "number"],
    [ago(used), "number"]]))];
  element("dropped").replaceChildren(caption, ...(step.entries ? table : []));
  element("dropped").hidden = !step.entries;
  const timed = data.totals.seconds > 0;
  const lines = Object.entries(data.prune).map(([name, found]) => ({
    type: "scatter", mode: "lines", name, x: found.map((s) => s.bound),
    y: found.map((s) => (timed ? s.lost : s.entries)),
    line: { width: name === policy ? 3 : 1.5, color: name === "cost" ? "#0b7a75" : "#8a94a0",
      shape: "linear" },
    customdata: found.map((s) => `${bytes(s.bound)}: ${entriesText(s.entries)} removed, `
      + `${duration(s.lost)} lost`),
    hovertemplate: `${name}, %{customdata}<extra></extra>` }));
  const total = data.totals.directory || 1;
  const most = Math.max(...lines.flatMap((line) => line.y)) || 1;
  draw("curve", lines, { xaxis: { ...axis, title: { text: "keep at most" }, range: [0, total],
      ...ticks(round(total), bytes) },
    yaxis: { ...axis, rangemode: "tozero",
      title: { text: timed ? "compile time lost" : "entries removed" },
      ...(timed ? ticks(round(most, SECONDS), seconds) : ticks(round(most), number)) },
    shapes: [{ type: "line", x0: step.bound, x1: step.bound, y0: 0, y1: 1, yref: "paper",
      line: { color: "#c2570c", width: 2, dash: "dot" } }] });
};

const churn = () => {
  if (!data.churn.length) {
    nothing("churn", "No module has more than one key.");
    element("churn").classList.remove("chart");
    return;
  }
  const shown = data.churn.slice(0, 15);
  const places = new Map(shown.map((c, n) => [c.module, n]));
  const short = (text) => (text.length > 34 ? `${text.slice(0, 33)}…` : text);
  const times = all.created.reduce(([a, b], t) => [Math.min(a, t), Math.max(b, t)], [1e12, 0]);
  const span = Math.max((times[1] - times[0]) / 120, 1);
  const place = (i) => places.get(data.modules[all.module[i]]);
  const traces = dots([...Array(count).keys()].filter((i) => place(i) !== undefined),
    (i) => `${all.module[i]}/${Math.round(all.created[i] / span)}`,
    { x: (i) => new Date(all.created[i] * 1000).toISOString(), y: place,
      hover: "%{x}<br>%{text}", sizes: [7, 18], opacity: 0.5, text: (spot) => (spot.length > 1
        ? `${entriesText(spot.length)}, ${bytes(sum(spot.map((i) => all.size[i])))}`
        : `${hash(spot[0])}, ${bytes(all.size[spot[0]])}, ${took(spot[0])}`) });
  draw("churn", traces, { showlegend: traces.length > 1, margin: { l: 240, r: 40, t: 34, b: 40 },
    height: Math.max(160, 70 + 26 * shown.length),
    xaxis: { ...axis, type: "date" },
    yaxis: { ...axis, tickvals: shown.map((_, n) => n),
      ticktext: shown.map((c) => plain(short(c.module))),
      range: [shown.length - 0.5, -0.5] } });
  element("churn").style.height = "auto";
  element("churned").replaceChildren(
    row([["module"], ["keys", "number"], ["size", "number"], ["compile", "number"],
      ["likely cause"]], "th"),
    ...data.churn.map((c) => row([[c.module, "name"], [number(c.keys), "number"],
      [bytes(c.size), "number"], [c.seconds ? duration(c.seconds) : "–", "number"], [c.causes.join("; ")]])));
};

heading();
choose("measure", { size: "size", seconds: "compile time" }, "size", treemap);
treemap("size");
scatter();
ages();
const policies = Object.keys(data.prune).sort();
choose("policy", Object.fromEntries(policies.map((name) => [name, `policy ${name}`])), policy,
  (chosen) => { policy = chosen; prune(); });
element("bound").max = Math.max(data.prune[policy].length - 1, 0);
element("bound").value = Math.floor(data.prune[policy].length / 2);
element("bound").addEventListener("input", prune);
prune();
churn();
document.documentElement.dataset.drawn = "true";
})();
