"use strict";
// Comfort only: sorting, filtering, copying. Without it the page shows everything in the papers' order.
(() => {
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];

  // Sorting: ascending, descending, the order of the paper again. Cells without a number come last.
  const key = (row, index) => {
    const cell = row.cells[index];
    const text = cell.dataset.value ?? cell.textContent.trim();
    return text !== "" && !Number.isNaN(Number(text)) ? Number(text) : text;
  };
  const compare = (left, right) =>
    typeof left === "number" && typeof right === "number"
      ? left - right
      : String(left).localeCompare(String(right), "en", { numeric: true });

  for (const table of all("table.sortable")) {
    const body = table.tBodies[0];
    const original = [...body.rows];
    const heads = all("th[data-sort]", table);
    for (const head of heads) {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const next = { null: "ascending", ascending: "descending" }[head.getAttribute("aria-sort")];
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        table.classList.toggle("sorted", Boolean(next));
        if (!next) return body.append(...original);
        head.setAttribute("aria-sort", next);
        const sign = next === "ascending" ? 1 : -1;
        const rows = original.filter((row) => !row.classList.contains("group"));
        const keys = new Map(rows.map((row) => [row, key(row, head.cellIndex)]));
        rows.sort((a, b) => {
          const [left, right] = [keys.get(a), keys.get(b)];
          if (left === "" || right === "") return (left === "") - (right === "");
          return sign * compare(left, right);
        });
        body.append(...rows);
      });
    }
  }

  // Filtering: rows of the overview, their sections and their links, by words and by what they contain.
  const [text, verdict, count] = ["text", "verdict", "count"].map((name) => document.getElementById(`filter-${name}`));
  const rows = all(".overview tr[data-for]");
  const filter = () => {
    const words = text.value.toLowerCase().split(/\s+/).filter(Boolean);
    const shown = new Set();
    for (const row of rows) {
      const wanted = !verdict.value || Number(row.dataset[verdict.value]) > 0;
      if (wanted && words.every((word) => row.dataset.search.includes(word))) shown.add(row.dataset.for);
    }
    all("[data-for]").forEach((part) => (part.hidden = !shown.has(part.dataset.for)));
    all("article.experiment").forEach((part) => (part.hidden = !shown.has(part.id)));
    all("tr.left-out").forEach((part) => (part.hidden = shown.size < rows.length));
    for (const paper of all("section.paper")) {
      paper.hidden = all("article.experiment", paper).every((part) => part.hidden);
      all(`[data-paper="${paper.id}"]`).forEach((part) => (part.hidden = paper.hidden));
    }
    const whole = rows.length === 1 ? "1 experiment" : `${rows.length} experiments`;
    count.textContent = shown.size === rows.length ? whole : `${shown.size} of ${rows.length}`;
    document.querySelector(".nothing").hidden = shown.size > 0;
  };
  text.addEventListener("input", filter);
  verdict.addEventListener("change", filter);
  document.querySelector(".filters").hidden = false;
  filter();

  // A link to something that the filter hides, or that is folded away, shows it.
  addEventListener("hashchange", () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    if (target.closest("[hidden]")) {
      text.value = verdict.value = "";
      filter();
      target.scrollIntoView();
    }
  });

  // The command: to the clipboard, or at least selected where the browser forbids that.
  for (const button of all("button.copy")) {
    const code = button.parentElement.querySelector("code");
    button.hidden = false;
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(code);
        button.textContent = "Selected";
      }
      setTimeout(() => (button.textContent = "Copy"), 2000);
    });
  }

  // A tooltip needs a pointer; a tap shows the same line inside the cell.
  document.addEventListener("click", (event) => {
    const cell = event.target.closest("td.cell");
    if (cell && !event.target.closest("a")) cell.classList.toggle("open");
  });

  // The paper that is being read, in the navigation.
  const links = new Map(all("nav li[data-for], nav li[data-paper]").map((item) => [item.dataset.for ?? item.dataset.paper, item]));
  const watch = new IntersectionObserver(
    (changes) => changes.forEach(({ target, isIntersecting }) => links.get(target.id)?.classList.toggle("current", isIntersecting)),
    { rootMargin: "-20% 0px -75% 0px" },
  );
  all("section.paper, article.experiment").forEach((part) => watch.observe(part));
})();
