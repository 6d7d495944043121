// Draws the figures of the page in the colours of its style sheet, and again where those change.
"use strict";
(() => {
  const plots = JSON.parse(document.getElementById("figures").textContent);
  const root = document.documentElement;
  const prefersDark = window.matchMedia("(prefers-color-scheme: dark)");
  const colour = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();

  function axes(layout) {
    for (const [name, axis] of Object.entries(layout)) {
      if (!/^[xy]axis\d*$/.test(name)) continue;
      axis.gridcolor = axis.zerolinecolor = axis.linecolor = colour("line");
      axis.tickcolor = colour("dim");
    }
  }

  // A trace says in its meta which colours of the page are its own.
  function paint(figure) {
    const copy = structuredClone(figure);
    for (const trace of copy.data) {
      const meta = trace.meta || {};
      if (meta.colour) {
        const own = colour(meta.colour);
        trace.marker = { ...trace.marker, color: own };
        if (trace.type === "scatter") trace.line = { ...trace.line, color: own };
        if (trace.type === "box") trace.line = { ...trace.line, color: own, width: 1 };
      }
      if (meta.heat) {
        trace.colorscale = [0, 1, 2, 3, 4].map((i) => [i / 4, colour(`heat${i}`)]);
        trace.colorbar = { ...trace.colorbar, outlinewidth: 0, thickness: 12 };
      }
    }
    const layout = copy.layout;
    layout.paper_bgcolor = layout.plot_bgcolor = "rgba(0,0,0,0)";
    layout.font = { color: colour("text"), size: 12, family: getComputedStyle(document.body).fontFamily };
    layout.hoverlabel = { bgcolor: colour("raised"), bordercolor: colour("line"), font: { color: colour("text") } };
    layout.legend = { ...layout.legend, bgcolor: "rgba(0,0,0,0)" };
    layout.modebar = { bgcolor: "rgba(0,0,0,0)", color: colour("dim"), activecolor: colour("text") };
    axes(layout);
    return copy;
  }

  // A legend above the bars takes more lines where the page is narrow; it is cut where it would
  // be more than half of the figure.
  const LINE_PX = 20, LETTER_PX = 7, GLYPH_PX = 48;
  function makeRoom(figure, width) {
    const { layout } = figure, { margin } = layout;
    if (!layout.legend || layout.legend.orientation !== "h") return;
    const names = figure.data.map((trace) => trace.name || "");
    const longest = GLYPH_PX + LETTER_PX * Math.max(0, ...names.map((name) => name.length));
    const columns = Math.max(1, Math.floor((width - margin.l - margin.r) / longest));
    const lines = Math.ceil(names.length / columns);
    const whole = names.length * GLYPH_PX + LETTER_PX * names.join("").length;
    if (lines < 2 || whole <= width - margin.l - margin.r) return;
    const more = LINE_PX * (lines - 1);
    layout.margin = { ...margin, t: margin.t + more };
    layout.height = Math.max(layout.height + more, 2 * LINE_PX * (lines + 1));
  }

  // Named one by one: the library's own set has a button that sends the data to its makers.
  const buttons = [["toImage"], ["zoom2d", "pan2d"], ["zoomIn2d", "zoomOut2d", "resetScale2d"]];
  const config = {
    displaylogo: false, responsive: true, showTips: false, modeBarButtons: buttons,
    showSendToCloud: false, showLink: false, plotlyServerURL: "",
  };

  const drawnWidth = new Map();
  function draw(place) {
    const chosen = document.querySelector(`select[data-for="${place.id}"]`);
    const index = chosen ? chosen.selectedIndex : 0;
    const figure = paint(plots[place.id][index]);
    figure.layout.uirevision = `figure ${index}`;  // another width or theme keeps the zoom
    drawnWidth.set(place, place.clientWidth);
    makeRoom(figure, place.clientWidth);
    return Plotly.react(place, figure.data, figure.layout, config);
  }

  function drawAll() {
    return Promise.all([...document.querySelectorAll(".plot")].map(draw));
  }

  // A phone's bars that come and go, and each step of a window that is dragged, are no new width.
  const SETTLED_MS = 150;
  let settling = 0;
  function resized() {
    clearTimeout(settling);
    settling = setTimeout(() => {
      const places = [...document.querySelectorAll(".plot")];
      places.filter((place) => place.clientWidth !== drawnWidth.get(place)).forEach(draw);
    }, SETTLED_MS);
  }

  function wear(theme) {
    root.dataset.theme = theme;
    const other = theme === "dark" ? "light" : "dark";
    document.getElementById("theme").textContent = other;
    document.getElementById("theme").title = `show it ${other}`;
  }

  wear(prefersDark.matches ? "dark" : "light");
  document.getElementById("theme").hidden = false;
  document.getElementById("theme").addEventListener("click", () => {
    wear(root.dataset.theme === "dark" ? "light" : "dark");
    drawAll();
  });
  prefersDark.addEventListener("change", () => {
    wear(prefersDark.matches ? "dark" : "light");
    drawAll();
  });
  window.addEventListener("resize", resized);
  for (const select of document.querySelectorAll("select[data-for]")) {
    select.hidden = false;
    select.addEventListener("change", () => draw(document.getElementById(select.dataset.for)));
  }
  drawAll().then(() => { root.dataset.drawn = String(document.querySelectorAll(".plot .main-svg").length > 0); });
})();
