"use strict";
// Charts: read values with a pointer or the arrow keys

const tip = document.getElementById("tip");

function showTip(text, x, y) {
  tip.textContent = text;
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = x + 14 + box.width > document.documentElement.clientWidth ? x - 14 - box.width : x + 14;
  tip.style.left = `${Math.max(4, left)}px`;
  tip.style.top = `${Math.max(4, y - box.height - 10)}px`;
}

for (const chart of document.querySelectorAll(".chart")) {
  const notes = JSON.parse(chart.dataset.notes);
  const plot = chart.querySelector(".plot");
  const cursor = chart.querySelector(".cursor");
  let at = -1;
  const show = (index) => {
    at = Math.min(Math.max(index, 0), notes.length - 1);
    const box = plot.getBoundingClientRect();
    cursor.setAttribute("x1", `${notes[at][0]}%`);
    cursor.setAttribute("x2", `${notes[at][0]}%`);
    cursor.setAttribute("visibility", "visible");
    showTip(notes[at][1], box.left + (box.width * notes[at][0]) / 100, box.top + box.height * 0.45);
  };
  const hide = () => {
    at = -1;
    tip.hidden = true;
    cursor.setAttribute("visibility", "hidden");
  };
  if (!notes.length) continue;
  plot.addEventListener("pointermove", (event) => {
    const box = plot.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * 100;
    let best = 0;
    notes.forEach((note, index) => {
      if (Math.abs(note[0] - x) < Math.abs(notes[best][0] - x)) best = index;
    });
    show(best);
  });
  plot.addEventListener("pointerleave", hide);
  chart.addEventListener("blur", hide);
  chart.addEventListener("keydown", (event) => {
    if (event.key === "ArrowRight") show(at + 1);
    else if (event.key === "ArrowLeft") show(at < 0 ? notes.length - 1 : at - 1);
    else if (event.key === "Escape") hide();
    else return;
    event.preventDefault();
  });
}

for (const button of document.querySelectorAll("[data-curve]")) {
  button.addEventListener("click", () => {
    for (const other of document.querySelectorAll("[data-curve]")) {
      other.setAttribute("aria-pressed", String(other === button));
    }
    for (const panel of document.querySelectorAll("[data-curve-panel]")) {
      panel.hidden = panel.dataset.curvePanel !== button.dataset.curve;
    }
  });
}
