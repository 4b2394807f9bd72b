// What the theme leaves unsaid: a name for the search dialog, and a way for the keyboard to code and tables that scroll sideways.
document.addEventListener("DOMContentLoaded", () => {
  document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
  for (const box of document.querySelectorAll("pre > code, .md-typeset__scrollwrap, .highlight-ipynb, .jp-OutputArea-output")) {
    if (!box.hasAttribute("tabindex")) box.tabIndex = 0;
  }
});
