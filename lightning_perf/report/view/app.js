// The pages that a browser shows, in the report and in the TensorBoard tab: mount(root, source).
//
// `source` is where pages come from:
//   runs()                     -> {logdir, scanning, problem, runs: [{id, name, windows: [{id, label, trace}]}]}
//   page(run, window)          -> {state: "ready", page, window} | {state: "working", ...} | {state: "failed", message}
//   ranks(run), compare(base, baseWindow, candidate, candidateWindow): the same of one view, or null where there is none
//   compared()                 the same of the comparison that a report holds, or null
//   traceUrl(run, window)      -> where the trace itself can be fetched, or null
//   live                       whether new runs can appear
// Everything in a page is text or numbers. Text goes into the document as text, never as markup.

const PERFETTO = "https://ui.perfetto.dev";
const UNKNOWN = "-";
const POLL_MS = [100, 150, 200, 250, 350, 500];
const RESCAN_MS = 5000;
const PAPER_PX = 700;
const LEGEND_LINE_PX = 19;
const SEARCHED_FROM = 10; // rows of a table that has a search field: shorter ones are read

// Elements

function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

function svg(tag, attributes) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

function select(label, options, chosen, onchange) {
  const list = el("select", { "aria-label": label, onchange: () => onchange(list.value) });
  for (const [value, text] of options) list.append(el("option", { value, selected: value === chosen }, text));
  return list;
}

// Numbers and rows: pure functions, tested without a browser

export function written(value, column) {
  if (value === null || value === undefined) return UNKNOWN;
  if (!column.numeric) return String(value);
  return (value / column.factor).toLocaleString("en-US", {
    minimumFractionDigits: column.decimals,
    maximumFractionDigits: column.decimals,
    useGrouping: column.grouped,
  });
}

export function sorted(rows, place, descending) {
  const compare = (a, b) =>
    typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
  return [...rows].sort((one, other) => {
    const [a, b] = [one[place], other[place]];
    if (a === null || b === null) return (a === null) - (b === null); // the unknown is last either way
    return descending ? compare(b, a) : compare(a, b);
  });
}

export function matching(rows, columns, words, step) {
  const texts = columns.map((column, place) => (column.numeric ? null : place)).filter((place) => place !== null);
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  const stepPlace = columns.findIndex((column) => column.key === "step");
  return rows.filter((row) => {
    if (step !== null && stepPlace >= 0 && row[stepPlace] !== step) return false;
    const text = texts.map((place) => row[place] ?? "").join(" ").toLowerCase();
    return wanted.every((word) => text.includes(word));
  });
}

export function rowsText(found, all) {
  const some = found === all ? "" : `${found.toLocaleString("en-US")} of `;
  return `${some}${all.toLocaleString("en-US")} ${all === 1 ? "row" : "rows"}`;
}

export function grouped(rows, columns, key) {
  const place = columns.findIndex((column) => column.key === key);
  const summed = columns.map((column, at) => ({ column, at })).filter(({ column }) => column.adds_up);
  const groups = new Map();
  for (const row of rows) {
    const name = row[place];
    const group = groups.get(name) ?? [name, 0, ...summed.map(() => null)];
    group[1] += 1;
    summed.forEach(({ at }, index) => {
      if (row[at] !== null) group[index + 2] = (group[index + 2] ?? 0) + row[at];
    });
    groups.set(name, group);
  }
  const count = { key: "rows", name: "rows", numeric: true, unit: "", factor: 1, decimals: 0, grouped: true };
  return { columns: [columns[place], count, ...summed.map(({ column }) => column)], rows: [...groups.values()] };
}

export function points(values, width, height) {
  const low = Math.min(...values);
  const span = Math.max(...values) - low || 1;
  return values
    .map((value, at) => `${(at / (values.length - 1)) * width},${height - ((value - low) / span) * (height - 4) - 2}`)
    .join(" ");
}

// Theme

function themeOf() {
  let host = null;
  try {
    host = window.parent !== window ? window.parent.document.body : null;
  } catch {
    host = null; // a frame of somebody else
  }
  const prefers = window.matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  const listeners = [];
  const dark = () => (chosen !== null ? chosen : host ? host.classList.contains("dark-mode") : prefers.matches);
  const apply = () => {
    const name = dark() ? "dark" : "light";
    if (document.documentElement.dataset.theme === name) return;
    document.documentElement.dataset.theme = name;
    listeners.forEach((listener) => listener());
  };
  prefers.addEventListener("change", apply);
  if (host) new MutationObserver(apply).observe(host, { attributes: true, attributeFilter: ["class"] });
  apply();
  return {
    toggle() {
      chosen = !dark();
      apply();
    },
    onChange: (listener) => listeners.push(listener),
  };
}

// Figures

// A legend that does not fit one line is a grid, which takes height from the figure: how many lines it has.
export function legendLines(data, width) {
  const names = data.filter((trace) => trace.name && trace.showlegend !== false).map((trace) => trace.name);
  const widths = names.map((name) => 58 + 6.4 * name.length);
  if (widths.reduce((sum, one) => sum + one, 0) <= width) return 1;
  return Math.ceil(names.length / Math.max(1, Math.floor(width / Math.max(...widths))));
}

function styled({ data, layout }, width) {
  const style = getComputedStyle(document.documentElement);
  const color = (name) => style.getPropertyValue(name).trim();
  const copy = structuredClone(layout);
  delete copy.title;
  // The page shows the title above the figure: its room goes to the legend, which makes its own.
  const room = copy.template?.layout?.margin?.t ?? 0;
  copy.margin = { ...copy.margin, t: 6 };
  copy.legend = { ...copy.legend, y: 1, maxheight: 400 };
  if (copy.height) copy.height += LEGEND_LINE_PX * (legendLines(data, width) - 1) - room;
  copy.autosize = true;
  copy.paper_bgcolor = "rgba(0,0,0,0)";
  copy.plot_bgcolor = "rgba(0,0,0,0)";
  copy.font = { ...copy.font, color: color("--text"), family: getComputedStyle(document.body).fontFamily };
  copy.hoverlabel = {
    ...copy.hoverlabel,
    bgcolor: color("--raised"),
    bordercolor: color("--line"),
    font: { color: color("--text"), size: 12 },
    align: "left",
  };
  for (const key of Object.keys(copy).filter((name) => /^[xy]axis\d*$/.test(name))) {
    const [line, text] = [color("--line"), color("--text")];
    const tickfont = { ...copy[key].tickfont, color: text };
    copy[key] = { ...copy[key], gridcolor: line, zerolinecolor: line, linecolor: line, color: text, tickfont };
  }
  for (const one of copy.annotations ?? []) {
    if (one.bgcolor) Object.assign(one, { bgcolor: color("--raised"), bordercolor: color("--line") });
  }
  return copy;
}

const PLOT_CONFIG = {
  displaylogo: false,
  responsive: true,
  modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"],
};

// The application

class App {
  constructor(root, source) {
    this.root = root;
    this.source = source;
    this.theme = themeOf();
    this.theme.onChange(() => this.redraw());
    this.listing = { runs: [], scanning: true, problem: null, logdir: "" };
    this.state = { run: null, window: "", view: "overview", step: null, ...this.fromHash() };
    this.page = null;
    this.views = new Map(); // id -> {node, plots: [], drawn}
    this.asked = 0;
    this.body = el("main", { id: "lp-main" });
    this.bar = el("div", { class: "lp-bar" });
    root.replaceChildren(el("div", { class: "lp" }, this.bar, this.body));
    window.addEventListener("hashchange", () => this.followHash());
    window.addEventListener("beforeprint", () => this.toPaper(true));
    window.addEventListener("afterprint", () => this.toPaper(false));
  }

  // Where we are

  fromHash() {
    const given = new URLSearchParams(window.location.hash.slice(1));
    const state = {};
    for (const key of ["run", "window", "view"]) if (given.has(key)) state[key] = given.get(key);
    if (given.has("step") && /^\d+$/.test(given.get("step"))) state.step = Number(given.get("step"));
    return state;
  }

  toHash() {
    const { run, window: shown, view, step } = this.state;
    const parts = new URLSearchParams();
    if (run !== null && this.source.live) parts.set("run", run);
    if (shown) parts.set("window", shown);
    parts.set("view", view);
    if (step !== null) parts.set("step", step);
    const hash = `#${parts}`;
    const { pathname, search } = window.location; // a hash alone would be one of the document's base address
    if (hash !== window.location.hash) window.history.replaceState(null, "", `${pathname}${search}${hash}`);
  }

  followHash() {
    const { run = this.state.run, window: shown = "", view = this.state.view, step = null } = this.fromHash();
    const other = run !== this.state.run || shown !== this.state.window;
    Object.assign(this.state, { run, window: shown, step });
    if (other) this.open(run, shown);
    else this.show(view);
  }

  get run() {
    return this.listing.runs.find((run) => run.id === this.state.run) ?? null;
  }

  // Runs

  async start() {
    await this.rescan();
    if (this.source.live) this.watch();
  }

  async watch() {
    for (;;) {
      await sleep(RESCAN_MS);
      if (!document.hidden && (this.listing.scanning || this.listing.runs.length === 0)) await this.rescan();
    }
  }

  async rescan() {
    const before = this.listing;
    try {
      this.listing = await this.source.runs();
    } catch (error) {
      if (this.page === null) this.say("TensorBoard does not answer", String(error.message ?? error));
      return;
    }
    const names = (listing) => JSON.stringify(listing.runs);
    if (this.page !== null && names(before) === names(this.listing)) return;
    if (this.run === null) Object.assign(this.state, { run: this.listing.runs.at(-1)?.id ?? null, window: "" });
    this.drawBar();
    if (this.state.run === null) this.showEmpty();
    else if (this.page === null || this.opened !== this.state.run) await this.open(this.state.run, this.state.window);
  }

  showEmpty() {
    if (this.listing.scanning) {
      this.say("Looking for traces", this.listing.logdir);
      return;
    }
    const state = el("div", { class: "lp-state" }, el("h2", {}, "No run and no trace here yet"));
    if (this.listing.problem) state.append(el("p", {}, this.listing.problem));
    state.append(
      el("p", {}, `Looked in ${this.listing.logdir} for folders of PerfCallback and for files named *.pt.trace.json or *.pt.trace.json.gz.`),
      el("p", {}, "Measure a training with PyTorch Lightning:"),
      code("from lightning.pytorch import Trainer\nfrom lightning_perf import PerfCallback\n\ntrainer = Trainer(callbacks=[PerfCallback()])"),
      el("p", {}, "Or record a trace of any PyTorch program:"),
      code(
        "import torch\n\nhandler = torch.profiler.tensorboard_trace_handler(\"<this log folder>/my_run\")\n" +
          "with torch.profiler.profile(on_trace_ready=handler) as prof:\n    for batch in loader:\n        train(batch)\n        prof.step()",
      ),
    );
    this.body.replaceChildren(state);
  }

  say(title, text, working = null) {
    const state = el("div", { class: "lp-state", role: "status" }, el("h2", {}, title), el("p", {}, text));
    if (working) state.append(el("progress", { max: 100, value: working.percent }));
    this.body.replaceChildren(state);
  }

  drawBar() {
    const run = this.run;
    const parts = [el("span", { class: "lp-brand" }, el("span", {}, "lightning"), "-perf")];
    const { runs } = this.listing;
    if (runs.length > 1) {
      const options = runs.map((one) => [one.id, one.name]);
      parts.push(el("label", { class: "lp-choose" }, "run", select("run", options, run?.id, (id) => this.open(id, ""))));
    }
    if (run && run.windows.length > 1) {
      const options = run.windows.map((one) => [one.id, one.label]);
      const list = select("trace window", options, this.state.window || this.shown, (id) => this.open(run.id, id));
      parts.push(el("label", { class: "lp-choose" }, "window", list));
    }
    if (this.page?.steps.length > 1) {
      const options = [["", "all steps"], ...this.page.steps.map(({ number }) => [String(number), `step ${number}`])];
      const chosen = this.state.step === null ? "" : String(this.state.step);
      const list = select("step", options, chosen, (value) => this.filter(value === "" ? null : Number(value)));
      parts.push(el("label", { class: "lp-choose" }, "step", list));
    }
    parts.push(el("span", { class: "lp-grow" }));
    const there = run?.windows.find(({ id }) => id === this.shown)?.trace !== false; // a record outlives its trace
    const url = run && this.page?.trace && there ? this.source.traceUrl(run.id, this.shown) : null;
    if (url) {
      parts.push(el("a", { href: url, download: this.page.trace, class: "lp-choose", id: "lp-download" }, "Download trace"));
      if (this.source.live) {
        const open = () => openInPerfetto(url, this.page.trace, (text) => this.warn(text));
        parts.push(el("button", { onclick: open, title: "Opens ui.perfetto.dev and hands it the trace" }, "Open in Perfetto"));
      }
    }
    if (this.source.live) parts.push(el("button", { onclick: () => this.refresh() }, "Refresh"));
    else parts.push(el("button", { onclick: () => window.print() }, "Print"));
    parts.push(el("button", { onclick: () => this.theme.toggle(), "aria-label": "light or dark" }, "Light / dark"));
    this.bar.replaceChildren(...parts);
  }

  warn(text) {
    const note = el("span", { class: "lp-choose", role: "alert" }, text);
    this.bar.append(note);
    setTimeout(() => note.remove(), 8000);
  }

  async refresh() {
    await this.rescan();
    if (this.run) await this.open(this.state.run, this.state.window);
  }

  // Pages

  async open(run, shown) {
    const asked = ++this.asked;
    const other = run !== this.opened || shown !== this.state.window;
    Object.assign(this.state, { run, window: shown, step: other ? null : this.state.step });
    this.opened = run;
    this.drawBar();
    this.body.setAttribute("aria-busy", "true");
    const answer = await settle(
      () => this.source.page(run, shown),
      (working) => {
        this.page = null;
        this.say(`Reading ${working.file}`, progressText(working), working);
      },
      () => asked === this.asked,
    );
    if (answer === null) return;
    this.body.removeAttribute("aria-busy");
    this.toHash();
    if (answer.state === "failed") {
      this.page = null;
      this.drawBar();
      this.say("This cannot be shown", answer.message);
      return;
    }
    this.page = answer.page;
    this.shown = answer.window; // which one it is where none was asked for
    this.drawBar();
    this.drawPage();
  }

  drawPage() {
    const { page } = this;
    this.views.forEach(({ plots }) => plots.forEach(({ node }) => window.Plotly?.purge(node)));
    this.views.clear();
    const list = page.views.map((view) => ({ ...view }));
    if (this.source.ranks && this.run.windows.length > 1) list.push({ id: "ranks", title: "Ranks", ask: () => this.source.ranks(this.run.id) });
    if (this.source.compared) list.push({ id: "compare", title: "Compare", ask: this.source.compared });
    if (this.source.compare && this.listing.runs.length > 1) list.push({ id: "compare", title: "Compare", compare: true });
    this.list = list;
    this.tabs = el("div", { class: "lp-tabs", role: "tablist", "aria-label": "views", onkeydown: (event) => this.onTabKey(event) });
    for (const view of list) {
      this.tabs.append(
        el("button", { role: "tab", id: `lp-tab-${view.id}`, "aria-controls": `lp-view-${view.id}`, onclick: () => this.show(view.id) }, view.title),
      );
    }
    this.holder = el("div", {});
    this.body.replaceChildren(
      el("h1", { class: "lp-title" }, page.title),
      el("div", { class: "lp-subtitle" }, el("span", {}, page.subtitle), quality(page.notes)),
      this.tabs,
      this.holder,
    );
    this.show(list.some(({ id }) => id === this.state.view) ? this.state.view : "overview");
  }

  onTabKey(event) {
    const move = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity }[event.key];
    if (move === undefined) return;
    const at = this.list.findIndex(({ id }) => id === this.state.view);
    const to = Math.min(this.list.length - 1, Math.max(0, at + move));
    this.show(this.list[to].id);
    this.tabs.children[to].focus();
    event.preventDefault();
  }

  show(id) {
    const view = this.list.find((one) => one.id === id) ?? this.list[0];
    this.state.view = view.id;
    for (const tab of this.tabs.children) {
      const on = tab.id === `lp-tab-${view.id}`;
      tab.setAttribute("aria-selected", on);
      tab.tabIndex = on ? 0 : -1;
      if (on && this.tabs.scrollWidth > this.tabs.clientWidth) tab.scrollIntoView({ block: "nearest", inline: "nearest" });
    }
    const built = this.built(view);
    for (const [other, { node }] of this.views) node.hidden = other !== view.id;
    this.draw(built);
    this.toHash();
  }

  built(view) {
    let built = this.views.get(view.id);
    if (built) return built;
    const node = el("section", { class: "lp-view", role: "tabpanel", id: `lp-view-${view.id}`, "aria-labelledby": `lp-tab-${view.id}`, "data-title": view.title });
    built = { node, plots: [], tables: [], drawn: false };
    this.views.set(view.id, built);
    this.holder.append(node);
    if (view.compare) this.buildCompare(built);
    else if (view.ask) this.fetchInto(built, node, view.ask);
    else this.fill(built, node, view);
    return built;
  }

  fill(built, node, view) {
    const main = el("div", {}, ...view.blocks.map((block) => this.block(block, built)));
    const side = view.side.length ? el("div", {}, ...view.side.map((block) => this.block(block, built))) : null;
    node.append(el("div", { class: side ? "lp-columns two" : "lp-columns" }, main, side));
    node.append(...view.below.map((block) => this.block(block, built)));
  }

  async fetchInto(built, place, ask) {
    const mark = (built.asked = (built.asked ?? 0) + 1);
    const answer = await settle(
      ask,
      (working) => place.replaceChildren(el("p", { class: "lp-note", role: "status" }, `Reading ${working.file}: ${progressText(working)}`)),
      () => built.asked === mark,
    );
    if (answer === null) return;
    place.replaceChildren();
    if (answer.state === "failed") {
      place.append(this.block({ type: "note", title: "This cannot be shown", text: answer.message }, built));
      return;
    }
    this.fill(built, place, answer.page);
    built.drawn = false;
    if (!built.node.hidden) this.draw(built);
  }

  buildCompare(built) {
    const { runs } = this.listing;
    const options = runs.map((run) => [run.id, run.name]);
    const at = runs.findIndex((run) => run.id === this.state.run);
    const after = Math.max(at, 1); // the first run has none before it: it is the one before the second
    const chosen = { base: runs[after - 1].id, candidate: runs[after].id };
    const result = el("div", {});
    const ask = () => {
      built.plots = [];
      const windowOf = (id) => (id === this.state.run ? this.state.window : "");
      this.fetchInto(built, result, () => this.source.compare(chosen.base, windowOf(chosen.base), chosen.candidate, windowOf(chosen.candidate)));
    };
    const pick = (key, label) =>
      el("label", { class: "lp-choose" }, label, select(label, options, chosen[key], (id) => {
        chosen[key] = id;
        ask();
      }));
    built.node.append(el("div", { class: "lp-tools" }, pick("base", "before"), pick("candidate", "after")), result);
    ask();
  }

  // Blocks

  block(block, built) {
    const node = el("div", { class: `lp-block lp-is-${block.type}` });
    if (block.title) node.append(el("h3", {}, block.title));
    if (block.aid) node.append(el("p", { class: "lp-aid" }, block.aid));
    const make = {
      findings: () => this.findings(block),
      tiles: () => [el("div", { class: "lp-tiles" }, ...block.tiles.map((tile) => this.tile(tile)))],
      figure: () => [this.figure(block, built)],
      table: () => this.table(block, built),
      facts: () => [el("dl", { class: "lp-facts" }, ...block.facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))))],
      note: () => [el("p", { class: "lp-note" }, block.text)],
    }[block.type];
    node.append(...make());
    return node;
  }

  findings({ verdict, cards, outcome }) {
    const first = 5;
    const nodes = [el("div", { class: "lp-verdict" }, ...verdict.map((line) => el("p", {}, line)))];
    if (outcome) nodes.push(el("p", { class: "lp-outcome" }, outcome));
    const all = cards.map((card) => this.card(card));
    nodes.push(...all.slice(0, first));
    if (all.length > first) nodes.push(el("details", { class: "lp-more" }, el("summary", {}, `${all.length - first} more`), ...all.slice(first)));
    return nodes;
  }

  card(card) {
    const number = card.number === null ? null : el("span", { class: "lp-number" }, String(card.number));
    const links = el("div", { class: "lp-links" });
    if (card.view && this.list.some(({ id }) => id === card.view)) {
      links.append(el("button", { class: "lp-link", onclick: () => this.show(card.view) }, "Show me"));
    }
    if (/^https:\/\//.test(card.link)) {
      links.append(el("a", { href: card.link, target: "_blank", rel: "noopener noreferrer" }, card.rule));
    }
    return el(
      "article",
      { class: `lp-card ${card.severity}` },
      el("h4", {}, number, card.title),
      card.gain ? el("p", { class: "lp-gain" }, card.gain) : null,
      code(card.action),
      el("details", {}, el("summary", {}, "Why"), el("ul", {}, ...card.why.map((line) => el("li", {}, line))), links),
    );
  }

  tile({ label, value, note, view, trend }) {
    const parts = [el("span", { class: "lp-label" }, label), el("span", { class: "lp-value" }, value)];
    if (note) parts.push(el("span", { class: "lp-hint" }, note));
    if (trend.length > 1) {
      const line = svg("svg", { viewBox: "0 0 100 24", preserveAspectRatio: "none", role: "img", "aria-label": `in ${trend.length} windows` });
      line.append(svg("polyline", { points: points(trend, 100, 24) }));
      parts.push(line);
    }
    return view && this.list.some(({ id }) => id === view)
      ? el("button", { class: "lp-tile", onclick: () => this.show(view) }, ...parts)
      : el("div", { class: "lp-tile" }, ...parts);
  }

  figure(block, built) {
    const node = el("div", { class: "lp-plot", id: `lp-plot-${block.id}`, role: "img", "aria-label": `${block.title}. ${block.aid}` });
    if (block.plot.layout.height) node.style.minHeight = `${block.plot.layout.height - 40}px`; // little moves when it is drawn
    built.plots.push({ node, block, drawn: false });
    return node;
  }

  draw(built) {
    if (!window.Plotly) {
      this.source.loadPlotly().then(() => this.draw(built), () => this.warn("The figures cannot be drawn: plotly did not load."));
      return;
    }
    for (const plot of built.plots) {
      if (plot.drawn) continue;
      plot.drawn = true;
      window.Plotly.newPlot(plot.node, plot.block.plot.data, styled(plot.block.plot, plot.node.clientWidth), PLOT_CONFIG);
      plot.node.on("plotly_click", ({ points: hit }) => this.onPlotClick(hit));
      if (plot.block.zooms) this.zoomToStep(plot);
    }
  }

  onPlotClick(hit) {
    const given = hit[0]?.customdata;
    const number = Array.isArray(given) ? given[0] : given;
    if (this.state.view === "steps" && this.page.steps.some((step) => step.number === number)) this.filter(number);
  }

  redraw() {
    for (const { plots, node } of this.views.values()) {
      for (const plot of plots) {
        if (!plot.drawn) continue;
        if (node.hidden) plot.drawn = false;
        else window.Plotly.react(plot.node, plot.block.plot.data, styled(plot.block.plot, plot.node.clientWidth), PLOT_CONFIG);
      }
    }
  }

  // One step of a trace

  filter(step) {
    this.state.step = step;
    this.drawBar();
    for (const { tables, plots } of this.views.values()) {
      tables.forEach((update) => update());
      plots.filter((plot) => plot.drawn && plot.block.zooms).forEach((plot) => this.zoomToStep(plot));
    }
    this.toHash();
  }

  zoomToStep(plot) {
    const step = this.page.steps.find(({ number }) => number === this.state.step);
    if (step) zoom(plot.node, step.start_us, step.end_us);
    else if (plot.zoomed) window.Plotly.relayout(plot.node, { "xaxis.range": plot.block.plot.layout.xaxis?.range ?? null, "xaxis.autorange": !plot.block.plot.layout.xaxis?.range });
    plot.zoomed = Boolean(step);
  }

  // Tables

  table(block, built) {
    const state = { sort: null, descending: true, words: "", group: "" };
    const holder = el("div", { class: "lp-scroll", tabindex: 0, role: "region", "aria-label": block.title });
    const count = el("span", { "aria-live": "polite" });
    const update = () => {
      let { columns } = block;
      let rows = matching(block.rows, columns, state.words, this.state.step);
      const found = rows.length;
      if (state.group) ({ columns, rows } = grouped(rows, columns, state.group));
      const at = columns.findIndex(({ key }) => key === state.sort);
      if (at >= 0) rows = sorted(rows, at, state.descending);
      holder.replaceChildren(this.rows(block, columns, rows, state, update, built));
      const filtered = this.state.step !== null && columns.some(({ key }) => key === "step") ? `, step ${this.state.step} only` : "";
      count.textContent = `${rowsText(found, block.rows.length)}${filtered}`;
    };
    built.tables.push(update);
    const tools = el("div", { class: "lp-tools" });
    if (block.rows.length >= SEARCHED_FROM) {
      tools.append(el("input", { type: "search", placeholder: "search names", "aria-label": `search ${block.title}`, oninput: (event) => {
        state.words = event.target.value;
        update();
      } }));
    }
    if (block.group_by.length) {
      const options = [["", "no groups"], ...block.group_by.map((key) => [key, `group by ${block.columns.find((one) => one.key === key).name}`])];
      tools.append(select(`group ${block.title}`, options, "", (key) => {
        state.group = key;
        state.sort = null;
        update();
      }));
    }
    tools.append(count);
    update();
    return [tools, holder];
  }

  rows(block, columns, rows, state, update, built) {
    const head = columns.map((column) => {
      const on = state.sort === column.key;
      const flip = () => {
        state.descending = on ? !state.descending : column.numeric;
        state.sort = column.key;
        update();
      };
      const unit = column.unit ? el("span", { class: "lp-unit" }, ` ${column.unit}`) : null;
      const arrow = on ? (state.descending ? " ▾" : " ▴") : "";
      return el(
        "th",
        { class: column.numeric ? "num" : null, scope: "col", "aria-sort": on ? (state.descending ? "descending" : "ascending") : "none" },
        el("button", { onclick: flip, "data-key": column.key }, column.name, unit, arrow),
      );
    });
    const zoomable = block.zoom && !state.group && built.plots.some((plot) => plot.block.id === block.zoom);
    const start = columns.findIndex(({ key }) => key === "start_us");
    const length = columns.findIndex(({ key }) => key === "duration_us");
    const lines = rows.map((row) => {
      const cells = columns.map((column, at) =>
        column.numeric
          ? el("td", { class: "num" }, written(row[at], column))
          : el("td", {}, el("span", { class: "lp-name", title: row[at] }, written(row[at], column))),
      );
      const line = el("tr", {}, ...cells);
      const act = () => {
        line.classList.toggle("open");
        if (zoomable) this.zoomTo(built, block.zoom, row[start], row[length]);
      };
      line.addEventListener("click", act);
      if (zoomable) {
        line.classList.add("zooms");
        line.tabIndex = 0;
        line.addEventListener("keydown", (event) => event.key === "Enter" && act());
      }
      return line;
    });
    return el("table", { class: "lp-table" }, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...lines));
  }

  zoomTo(built, id, startUs, durationUs) {
    const plot = built.plots.find((one) => one.block.id === id);
    const room = Math.max(durationUs, 1) * 0.75;
    zoom(plot.node, startUs - room, startUs + durationUs + room);
    plot.zoomed = true;
    plot.node.closest(".lp-block").scrollIntoView({ block: "nearest" });
  }

  // Paper

  toPaper(printing) {
    if (this.page === null) return;
    if (printing) {
      this.list.filter((view) => view.blocks).forEach((view) => this.built(view));
      for (const built of this.views.values()) {
        built.wasHidden = built.node.hidden;
        built.node.hidden = false;
        this.draw(built);
      }
      this.unfolded = [...this.body.querySelectorAll("details:not([open])")];
      this.unfolded.forEach((one) => (one.open = true));
    } else {
      this.views.forEach((built) => (built.node.hidden = built.wasHidden));
      this.unfolded.forEach((one) => (one.open = false));
    }
    for (const { plots } of this.views.values()) {
      for (const { node, drawn } of plots) {
        if (drawn) window.Plotly.relayout(node, printing ? { width: PAPER_PX, autosize: false } : { width: null, autosize: true });
      }
    }
  }
}

function quality(notes) {
  if (notes.length === 0) return el("span", { class: "lp-badge good" }, "Recorded without a fault");
  const title = notes.length === 1 ? "1 note on this record" : `${notes.length} notes on this record`;
  return el("details", { class: "lp-badge" }, el("summary", {}, title), el("ul", {}, ...notes.map((note) => el("li", {}, note))));
}

function code(text) {
  const copy = el("button", { "aria-label": "copy", onclick: async () => {
    await navigator.clipboard?.writeText(text).then(() => (copy.textContent = "Copied"), () => (copy.textContent = "Not allowed"));
    setTimeout(() => (copy.textContent = "Copy"), 1500);
  } }, "Copy");
  return el("div", { class: "lp-code" }, el("pre", {}, text), copy);
}

function zoom(node, startUs, endUs) {
  const range = { "xaxis.range": [startUs / 1000, endUs / 1000], "xaxis.autorange": false };
  window.Plotly.relayout(node, range);
}

function progressText({ stage, percent, elapsed_s: elapsed }) {
  const how = percent === null || percent === undefined ? stage : `${stage}, ${percent} %`;
  return `${how}, ${elapsed.toFixed(1)} s`;
}

async function settle(ask, onWorking, isCurrent) {
  for (let turn = 0; ; turn += 1) {
    let answer;
    try {
      answer = await ask();
    } catch (error) {
      answer = { state: "failed", message: String(error.message ?? error) };
    }
    if (!isCurrent()) return null;
    if (answer.state !== "working") return answer;
    onWorking(answer);
    await sleep(POLL_MS[Math.min(turn, POLL_MS.length - 1)]);
    if (!isCurrent()) return null;
  }
}

// Perfetto answers PING with PONG once it can take a trace:
// https://perfetto.dev/docs/visualization/deep-linking-to-perfetto-ui
async function openInPerfetto(url, title, warn) {
  const opened = window.open(PERFETTO);
  if (!opened) {
    warn("The browser did not open a window: allow pop-ups here, or download the trace.");
    return;
  }
  const buffer = await (await fetch(url)).arrayBuffer();
  const ping = setInterval(() => opened.postMessage("PING", PERFETTO), 100);
  const onPong = (event) => {
    if (event.source !== opened || event.data !== "PONG") return;
    clearInterval(ping);
    window.removeEventListener("message", onPong);
    opened.postMessage({ perfetto: { buffer, title } }, PERFETTO);
  };
  window.addEventListener("message", onPong);
  setTimeout(() => clearInterval(ping), 60000);
}

export function mount(root, source) {
  const app = new App(root, source);
  app.start();
  return app;
}
