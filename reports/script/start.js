// Last: everybody is there.
if (typeof Plotly === "undefined") document.documentElement.dataset.drawn = "yes";
else drawWithin(seen());
