"""The explorer: a program as one page for a browser, with its graph, memory and origins.

`page.py` writes the page; `stages.py` says what there is to show of what was given; the other files
make the data of it. The page itself is written in TypeScript, in the folder `explorer` of the
project; `template.html` is what `make explorer` builds of it.
"""

from lostwax.explorer.page import Page, explore, plot

__all__ = ["Page", "explore", "plot"]
