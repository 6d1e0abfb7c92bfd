"""Open every page of the built site in Chromium: ``make docs-check``.

A page must load without an error on the console, have a text for each figure, and be no wider than
a window of 400 pixels. The search must find "Student-t". Screenshots of some pages are left in
``docs/_build/screenshots``; the one of the start page must not be blank.

Chromium is the system's (Debian: ``apt-get install chromium``). Without a network, give a folder of
node packages, ``npm install mathjax@4``, as ``--cdn node_modules``.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import mimetypes
import os
import re
import shutil
import sys
import tempfile
import threading
from pathlib import Path
from urllib.parse import urlsplit

import matplotlib.image
from playwright.sync_api import Page, Route, sync_playwright

HERE = Path(__file__).parent
NARROW, WIDE = {"width": 400, "height": 800}, {"width": 1300, "height": 1000}
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SHOWN = (
    "index",
    "start",
    "models",
    "which_engine",
    "performance",
    "auto_gallery/index",
    "auto_gallery/time/disease_map",
    "tutorials/heteroscedastic_noise",
    "tutorials/multi_class",
    "tutorials/maps",
    "theory/checks",
    "theory/gibbs",
    "coming_from/gpflow",
    "reference/generated/pymc_augconj.sample",
)


class _Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        """Say nothing of each request."""


def serve(root: Path) -> http.server.ThreadingHTTPServer:
    """Serve a folder on a free port of this machine."""
    handler = functools.partial(_Handler, directory=str(root))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def from_folder(route: Route, cdn: Path | None) -> None:
    """Answer a request to another host from node's packages, or not at all."""
    path = urlsplit(route.request.url).path
    package = re.fullmatch(r"/npm/((?:@[^/]+/)?[^/@]+)(?:@[^/]*)?/(.*)", path)
    file = cdn / package[1] / package[2] if cdn and package else None
    if file and file.is_file():
        kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
        headers = {"Access-Control-Allow-Origin": "*"}
        route.fulfill(body=file.read_bytes(), content_type=kind, headers=headers)
    else:
        route.abort()


def faults(page: Page, address: str) -> list[str]:
    """Load a page into a narrow window; return what is wrong with it."""
    found: list[str] = []

    def on_console(message: object) -> None:
        # What another host would have answered is not this site's error.
        if message.type == "error" and urlsplit(message.location["url"]).netloc in ("", here):
            found.append(f"console: {message.text}")

    here = urlsplit(address).netloc
    page.once("pageerror", lambda error: found.append(f"exception: {error}"))
    page.on("console", on_console)
    page.goto(address, wait_until="load")
    page.wait_for_timeout(200)
    page.remove_listener("console", on_console)
    width = page.evaluate("document.documentElement.scrollWidth")
    if width > NARROW["width"]:
        found.append(f"{width} pixels wide, expected at most {NARROW['width']}")
    images = "[...document.querySelectorAll('article img')]"
    mute = page.evaluate(f"{images}.filter(i => !i.alt.trim()).map(i => i.getAttribute('src'))")
    broken = page.evaluate(f"{images}.filter(i => !i.naturalWidth).map(i => i.getAttribute('src'))")
    found += [f"no alt text: {source}" for source in mute]
    found += [f"not loaded: {source}" for source in broken if source not in mute]
    return found


def search(page: Page, address: str, words: str) -> str:
    """Return the results of the site's search."""
    page.goto(f"{address}/search.html?q={words}")
    page.wait_for_selector("#search-results ul.search li", timeout=20_000)
    page.wait_for_timeout(2000)
    return page.inner_text("#search-results")


def is_blank(picture: Path) -> bool:
    """Whether nearly all of a screenshot has one colour."""
    gray = matplotlib.image.imread(picture)[..., :3].mean(axis=-1)
    return bool(gray.std() < 0.02)


def main() -> int:
    """Check every page; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--site", type=Path, default=HERE / "_build" / "html")
    parser.add_argument("--cdn", type=Path, help="folder of node packages, in place of a network")
    parser.add_argument("--chromium", default=shutil.which("chromium") or "chromium")
    options = parser.parse_args()
    pages = sorted(
        path.relative_to(options.site).as_posix()
        for path in options.site.rglob("*.html")
        if not {"_static", "_sources", "_downloads"} & set(path.parts)
    )
    if not pages:
        parser.error(f"expected a built site in {options.site}, found none; run make docs")
    pictures = options.site.parent / "screenshots"
    pictures.mkdir(exist_ok=True)
    server = serve(options.site)
    address = f"http://127.0.0.1:{server.server_port}"
    bad = 0
    with tempfile.TemporaryDirectory() as profile, sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            profile, executable_path=options.chromium, args=FLAGS, viewport=NARROW
        )
        local = re.compile(r"^(?!http://127\.0\.0\.1:|data:|about:)")
        if options.cdn or os.environ.get("OFFLINE"):
            context.route(local, lambda route: from_folder(route, options.cdn))
        page = context.new_page()
        for name in pages:
            if found := faults(page, f"{address}/{name}"):
                bad += 1
                print(name, *found, sep="\n    ")
        results = search(page, address, "Student-t")
        print(f"search for Student-t: {results.splitlines()[0]}")
        if "Student-t" not in results:
            bad += 1
            print(f"expected Student-t among the results, found\n{results}")
        for size, label in ((NARROW, "narrow"), (WIDE, "wide")):
            page.set_viewport_size(size)
            for name in SHOWN:
                page.goto(f"{address}/{name}.html")
                page.wait_for_timeout(1500)
                page.screenshot(path=pictures / f"{name.replace('/', '_')}-{label}.png")
        if is_blank(pictures / "index-wide.png"):
            bad += 1
            print("the start page is blank")
        context.close()
    server.shutdown()
    print(f"{len(pages)} pages, {bad} faults; screenshots in {pictures}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
