"use strict";

// Tables: a click on a heading sorts by that column, another the other way round.
for (const table of document.querySelectorAll("table.sortable")) {
  table.querySelectorAll("th button").forEach((button) => {
    const heading = button.parentElement;
    button.addEventListener("click", () => {
      const ascending = heading.getAttribute("aria-sort") !== "ascending";
      heading.parentElement.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", ascending ? "ascending" : "descending");
      const value = (row) => row.cells[heading.cellIndex].dataset.value ?? row.cells[heading.cellIndex].textContent;
      const compare = (a, b) => {
        const [x, y] = [value(a), value(b)];
        const isNumber = x !== "" && y !== "" && !isNaN(x) && !isNaN(y);
        return isNumber ? x - y : x.localeCompare(y);
      };
      const rows = [...table.tBodies[0].rows].sort(compare);
      table.tBodies[0].append(...(ascending ? rows : rows.reverse()));
    });
  });
}

// Figures: the numbers nearest to the pointer.
const formatSteps = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

/** Returns [heading, [text, colour] ...] of a chart at a place in its view box, or null. */
function chartNumbers(chart, x) {
  const [left, , width] = chart.box;
  const value = chart.x[0] + ((x - left) / width) * (chart.x[1] - chart.x[0]);
  if (value < chart.x[0] || value > chart.x[1]) return null;
  let heading = null;
  const rows = chart.lines.map((line) => {
    const i = line.x.reduce((best, v, k) => (Math.abs(v - value) < Math.abs(line.x[best] - value) ? k : best), 0);
    heading ??= chart.ticks?.[line.x[i]] ?? chart.heading.replace("#", formatSteps.format(line.x[i]));
    return [`${line.name} ${line.estimate[i].toFixed(3)} [${line.low[i].toFixed(3)}, ${line.high[i].toFixed(3)}]`, line.colour];
  });
  return [heading, ...rows];
}

/** Returns the same of a cell of a heat map. */
function mapNumbers(chart, x, y) {
  for (const map of chart.maps) {
    const [left, top, width, height] = map.box;
    const row = Math.floor(((y - top) / height) * map.cells.length);
    const column = Math.floor(((x - left) / width) * map.cells[0].length);
    const cell = map.cells[row]?.[column] ?? null;
    if (cell !== null) {
      const text = map.names.length ? map.names[cell] : cell.toFixed(3);
      return [map.name, [`row ${row}, column ${column}: ${text}`, ""]];
    }
  }
  return null;
}

for (const figure of document.querySelectorAll("figure[data-chart]")) {
  const chart = JSON.parse(document.getElementById(figure.dataset.chart).textContent);
  const svg = figure.querySelector("svg");
  const note = document.createElement("div");
  note.className = "pointer";
  note.hidden = true;
  figure.append(note);

  const show = (event) => {
    const area = svg.getBoundingClientRect();
    const scale = svg.viewBox.baseVal.width / area.width;
    const [x, y] = [(event.clientX - area.left) * scale, (event.clientY - area.top) * scale];
    const numbers = chart.maps ? mapNumbers(chart, x, y) : chartNumbers(chart, x);
    note.hidden = numbers === null;
    if (numbers === null) return;
    const [heading, ...rows] = numbers;
    const title = document.createElement("b");
    title.textContent = heading;
    note.replaceChildren(title, ...rows.map(([text, colour]) => {
      const row = document.createElement("div");
      const mark = document.createElement("i");
      mark.style.background = colour;
      row.append(mark, text);
      return row;
    }));
    const room = figure.clientWidth - note.offsetWidth;
    note.style.left = `${Math.max(0, Math.min(room, event.clientX - area.left + 12))}px`;
    note.style.top = `${event.clientY - area.top + 16}px`;
  };
  svg.addEventListener("pointermove", show);
  svg.addEventListener("pointerdown", show);
  svg.addEventListener("pointerleave", () => { note.hidden = true; });
}
