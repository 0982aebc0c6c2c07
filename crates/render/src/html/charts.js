// Draws the charts of a report from the figures in its data blocks. The page has the same as SVG and tables; what this
// script has drawn replaces them on the screen. It loads nothing, and puts text into the page as text only.
(function () {
  "use strict";
  const read = (root, name) => JSON.parse(root.querySelector("script." + name).textContent);
  const STAGES = read(document, "stages");

  // Times, ns, with three digits, as in the rest of the page.
  function duration(ns) {
    const units = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"]];
    for (const [one, unit] of units) {
      // 999.5 of a smaller unit is 1.00 of this one.
      if (ns >= one * 0.9995) {
        const value = ns / one;
        return value.toFixed(value < 9.995 ? 2 : value < 99.95 ? 1 : 0) + " " + unit;
      }
    }
    return Math.round(ns) + " ns";
  }

  // A tick of an axis: as many digits as it has.
  function tick(ns) {
    // A line of the grid that has no text.
    if (ns === null) return "";
    if (ns === 0) return "0";
    for (const [one, unit] of [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]])
      if (ns >= one * 0.9999) return String(Number((ns / one).toPrecision(6))) + " " + unit;
    return "";
  }

  const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const stageColour = i => colour("--s" + i);

  function element(tag, parent, text, classes) {
    const e = document.createElement(tag);
    if (text !== undefined) e.textContent = text;
    if (classes) e.className = classes;
    parent.appendChild(e);
    return e;
  }

  const count = (n, what) => n + " " + what + (n === 1 ? "" : "s");

  // The parts of a request, longest first.
  function longest(stages) {
    return stages.map((ns, i) => [ns, i]).filter(p => p[0] > 0).sort((a, b) => b[0] - a[0]);
  }

  // What was drawn without scripts is still there: it is shown again if anything fails, whenever that is.
  function fallBack(root, error) {
    root.classList.remove("live");
    console.error(error);
  }

  const guarded = (root, draw) => (...all) => {
    try {
      return draw(...all);
    } catch (error) {
      fallBack(root, error);
    }
  };

  // A chart that follows the width of its place and the colours of the page.
  const drawn = [];
  function chart(place, height, options, data) {
    const one = { plot: null };
    one.draw = guarded(place.closest("section"), () => {
      const width = place.clientWidth;
      if (!width) return;
      if (one.plot) one.plot.destroy();
      const made = options(width);
      made.width = width;
      made.height = height;
      made.legend = { show: false };
      one.plot = new uPlot(made, data(), place);
    });
    one.draw();
    let width = place.clientWidth;
    new ResizeObserver(() => {
      if (place.clientWidth && place.clientWidth !== width) {
        width = place.clientWidth;
        one.draw();
      }
    }).observe(place);
    drawn.push(one.draw);
    return one;
  }

  function axes(values, side) {
    const line = colour("--line"), text = colour("--soft");
    const font = "12px system-ui, sans-serif";
    const common = { stroke: text, font, grid: { stroke: line, width: 1 }, ticks: { show: false } };
    return [
      Object.assign({ values: (u, all) => all.map(s => (s === null ? "" : tick(s * 1e9))), space: 70, size: 28 }, common),
      Object.assign({ values: (u, all) => all.map(values), size: side }, common),
    ];
  }

  // The cursor finds the bin whose middle is nearest, s.
  const middles = bins => bins.at.map(ns => (ns + bins.width / 2) / 1e9);

  // Bars on top of each other, from below, each as wide as its bin. Single rectangles: a path of a thousand bars takes a
  // browser without a graphics card seconds.
  function bars(u, bins, columns) {
    const { ctx, bbox } = u, zero = Math.round(u.valToPos(0, "y", true));
    const x = ns => Math.round(u.valToPos(ns / 1e9, "x", true));
    const places = bins.at.map(at => {
      const from = x(at), to = x(at + bins.width);
      return [from, Math.max(to - from, 1)];
    });
    const sums = places.map(() => 0), tops = places.map(() => zero);
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    columns.forEach(([values, fill]) => {
      ctx.fillStyle = fill;
      values.forEach((value, i) => {
        sums[i] += value;
        const top = Math.round(u.valToPos(sums[i], "y", true));
        if (top < tops[i]) ctx.fillRect(places[i][0], top, places[i][1], tops[i] - top);
        tops[i] = Math.min(top, tops[i]);
      });
    });
    ctx.restore();
  }

  // A series that only says how high the axis has to be.
  const height = () => ({ paths: () => null, points: { show: false } });

  // The time axis is the whole trace, also where nothing was seen, until the reader chooses a part of it.
  function timeScale(figures, at) {
    const whole = [0, figures.length / 1e9 || 1];
    return { time: false, range: (u, from, to) =>
      from === null || from === at[0] && to === at[at.length - 1] ? whole : [from, to] };
  }

  // Response time over time: the stages of each bin's slowest request, one on top of the other.
  function stacked(place, figures, readout, choose) {
    const bins = figures.requests, x = middles(bins);
    const used = bins.stages.map((_, i) => i).filter(i => bins.stages[i].some(ns => ns > 0));
    const describe = i => {
      if (i === null || i === undefined) return;
      const parts = longest(bins.stages.map(s => s[i])).slice(0, 3);
      const text = parts.map(p => STAGES[p[1]].name + " " + duration(p[0])).join(", ");
      readout.textContent = "after " + duration(bins.at[i]) + ": " + count(bins.count[i], "request") + ", mean " +
        duration(bins.mean[i]) + ", slowest " + duration(bins.max[i]) + ": " + text;
    };
    const logarithmic = place.parentNode.querySelector("input");
    const options = () => {
      const log = logarithmic && logarithmic.checked;
      const line = name => ({ stroke: colour(name), width: 1, points: { show: false } });
      const lines = [line("--r3"), line("--r1"), line("--bad")];
      return {
        scales: { x: timeScale(figures, middles(bins)), y: log ? { distr: 3 } : { range: (u, low, high) => [0, (high || 1) * 1.05] } },
        axes: axes(tick, 64),
        series: [{}].concat(log ? lines : [line("--soft"), height()]),
        cursor: { points: { show: false }, y: false },
        hooks: {
          drawAxes: [u => log || bars(u, bins, used.map(i => [bins.stages[i], stageColour(i)]))],
          setCursor: [u => describe(u.cursor.idx)],
          ready: [u => u.over.addEventListener("click", () => {
            if (u.cursor.idx !== null && u.cursor.idx !== undefined) choose(u.cursor.idx);
          })],
        },
      };
    };
    const positive = all => all.map(ns => Math.max(ns, 1));
    const data = () => logarithmic && logarithmic.checked
      ? [x, positive(bins.min), positive(bins.mean), positive(bins.max)]
      : [x, bins.mean, bins.max];
    const one = chart(place, 300, options, data);
    if (logarithmic) logarithmic.addEventListener("change", one.draw);
  }

  function depth(place, figures) {
    const bins = figures.depth;
    chart(place, 150, () => ({
      scales: { x: timeScale(figures, middles(bins)), y: { range: (u, low, high) => [0, Math.max(high || 1, 1) * 1.05] } },
      axes: axes(n => (Number.isInteger(n) ? String(n) : ""), 64),
      series: [{}, height()],
      hooks: { drawAxes: [u => bars(u, bins, [[bins.max, colour("--r1")]])] },
      cursor: { points: { show: false }, y: false },
    }), () => [middles(bins), bins.max]);
  }

  // One request: a row for each stage, where it lies in the request's time.
  function waterfall(place, title, request) {
    place.replaceChildren();
    title.textContent = "after " + duration(request.at) + ": " + duration(request.total);
    const total = Math.max(request.total, 1);
    let begin = 0;
    request.stages.forEach((ns, i) => {
      if (ns > 0) {
        const name = element("span", place, STAGES[i].name);
        name.title = STAGES[i].meaning;
        const bar = element("i", element("span", place, undefined, "bar"));
        bar.style.marginLeft = 100 * begin / total + "%";
        bar.style.width = 100 * ns / total + "%";
        bar.style.background = "var(--s" + i + ")";
        const split = request.splits && request.splits[i], states = STAGES[i].states;
        const parts = split && states ? longest(split).map(p => states[p[1]] + " " + duration(p[0])) : [];
        element("span", place, duration(ns) + (parts.length ? ": " + parts.join(", ") : ""));
      }
      begin += ns;
    });
  }

  function section(root) {
    const figures = read(root, "figures");
    const find = name => root.querySelector(".live-" + name);
    const rows = find("waterfall"), title = find("title"), select = find("choose");
    let show = () => {};
    if (rows) {
      figures.slowest.forEach((r, i) => {
        const text = i + 1 + ": " + duration(r.total) + (r.note ? ", " + r.note : "");
        element("option", select, text).value = i;
      });
      show = request => waterfall(rows, title, request);
      select.addEventListener("change", () => {
        const request = figures.slowest[Number(select.value)];
        if (request) show(request);
      });
      if (figures.slowest.length) show(figures.slowest[0]);
    }
    const bins = figures.requests;
    if (find("requests") && bins.at.length) stacked(find("requests"), figures, find("readout"), i => {
      // The ten slowest are known with the states of their threads.
      const known = figures.slowest.findIndex(r => r.at === bins.slowest_at[i] && r.total === bins.max[i]);
      select.value = known < 0 ? "" : String(known);
      show(known < 0
        ? { at: bins.slowest_at[i], total: bins.max[i], stages: bins.stages.map(s => s[i]) }
        : figures.slowest[known]);
    });
    if (find("depth") && figures.depth.at.length) depth(find("depth"), figures);
  }

  // The library draws later than it is told to: of an error there it is not known which chart has it.
  const allFallBack = event => document.querySelectorAll("section.live").forEach(root => fallBack(root, event.message || event.reason));
  addEventListener("error", allFallBack);
  addEventListener("unhandledrejection", allFallBack);

  document.querySelectorAll("section.vm").forEach(root => {
    // Before it is drawn, as what is not shown has no width.
    root.classList.add("live");
    guarded(root, section)(root);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawn.forEach(draw => draw()));
})();
