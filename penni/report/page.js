"use strict";
(() => {
  const root = document.documentElement;
  const systemDark = matchMedia("(prefers-color-scheme: dark)");
  document.getElementById("theme").addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : systemDark.matches;
    root.dataset.theme = dark ? "light" : "dark";
  });

  // A table sorts by the column whose header is pressed; pressed again, the other way round.
  for (const button of document.querySelectorAll("th button")) {
    button.addEventListener("click", () => {
      const header = button.closest("th");
      const table = header.closest("table");
      const column = header.cellIndex;
      const numbers = header.dataset.kind !== "text";
      const up = header.getAttribute("aria-sort") ? header.getAttribute("aria-sort") === "descending" : !numbers;
      for (const other of table.querySelectorAll("th")) other.removeAttribute("aria-sort");
      header.setAttribute("aria-sort", up ? "ascending" : "descending");
      const key = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
      const body = table.tBodies[0];
      const rows = [...body.rows].sort((one, other) => {
        const [a, b] = [key(one), key(other)];
        if (!numbers) return a.localeCompare(b, "en", { numeric: true }) * (up ? 1 : -1);
        if (a === "" || b === "") return (a === "") - (b === "");
        return (Number(a) - Number(b)) * (up ? 1 : -1);
      });
      body.append(...rows);
    });
  }

  // One of several pictures is shown at a time.
  for (const select of document.querySelectorAll("select[data-shows]")) {
    const show = () => {
      for (const part of select.closest("section").querySelectorAll("[data-part]")) {
        part.hidden = part.dataset.part !== select.value;
      }
    };
    select.addEventListener("change", show);
    show();
  }

  // A box that scrolls shows at which of its edges there is more.
  const edges = (box) => {
    const right = box.scrollWidth - box.clientWidth;
    const down = box.scrollHeight - box.clientHeight;
    box.classList.toggle("sideways", right > 1);
    box.classList.toggle("more-left", box.scrollLeft > 1);
    box.classList.toggle("more-right", box.scrollLeft < right - 1);
    box.classList.toggle("more-down", box.scrollTop < down - 1);
  };
  const resized = new ResizeObserver((entries) => entries.forEach((entry) => edges(entry.target)));
  for (const box of document.querySelectorAll(".wide")) {
    box.addEventListener("scroll", () => edges(box), { passive: true });
    resized.observe(box);
    edges(box);
  }

  // Hovering or tapping a layer tells what it is, and marks it.
  const layers = JSON.parse(document.getElementById("layers").textContent);
  const tip = document.getElementById("tip");
  let chosen = [];
  const leave = () => {
    tip.hidden = true;
    for (const part of chosen) part.classList.remove("chosen");
    chosen = [];
  };
  const enter = (event) => {
    const part = event.target.closest ? event.target.closest("[data-layer]") : null;
    leave();
    if (!part) return;
    const figure = part.closest("svg");
    const texts = layers[figure.closest("[data-figure]").dataset.figure] ?? layers.all;
    tip.textContent = texts[Number(part.dataset.layer)];
    tip.hidden = false;
    chosen = [...figure.querySelectorAll(`[data-layer="${part.dataset.layer}"]`)];
    for (const each of chosen) each.classList.add("chosen");
    const x = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8);
    const y = event.clientY + 18 + tip.offsetHeight > innerHeight ? event.clientY - tip.offsetHeight - 10 : event.clientY + 18;
    tip.style.left = `${Math.max(8, x)}px`;
    tip.style.top = `${y}px`;
  };
  for (const figure of document.querySelectorAll(".figure")) {
    figure.addEventListener("pointermove", enter);
    figure.addEventListener("pointerdown", enter);
    figure.addEventListener("pointerleave", leave);
  }
})();
