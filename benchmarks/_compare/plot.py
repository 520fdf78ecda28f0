"""Draw what was found: a bar for each peer, set and number of workers."""

from html import escape
from typing import Final

from _compare.figures import Found, rates_of, shown_number

_NAMES: Final = 190  # the column of names is so wide, in the picture's own units
_PANEL: Final = 150
_GAP: Final = 18
_LINE: Final = 24
_TOP: Final = 66
_ROOM: Final = 46  # for the number after the longest bar
_STYLE: Final = (
    "text{fill:#24292f}.q{fill:#57606a}.y{fill:#0969da}.p{fill:#afb8c1}.w{opacity:.55}.h{font-weight:600}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.q{fill:#9198a1}.y{fill:#4493f8}.p{fill:#59636e}}"
)


def plot(found: Found) -> str:
    """Return a picture, as SVG that is read in light and in dark."""
    keys = [key for key, peer in found["peers"].items() if "why" not in peer]
    width = _NAMES + len(found["sets"]) * (_PANEL + _GAP)
    height = _TOP + len(keys) * _LINE + 12
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" font-size="12"'
        ' font-family="system-ui, sans-serif">',
        "<title>Shuffled records a second, yogadl beside other loaders</title>",
        f"<style>{_STYLE}</style>",
        '<text x="0" y="16" class="h">Shuffled records a second</text>',
        f'<text x="{_NAMES}" y="16" class="q">upper bar: no workers; lower bar: two; longer is better</text>',
    ]
    for row, key in enumerate(keys):
        drawn.append(
            f'<text x="0" y="{_TOP + row * _LINE + 14}">{escape(found["peers"][key]["name"])}</text>'
        )
    for column, each in enumerate(found["sets"]):
        rates = {key: rates_of(each["peers"].get(key, {})) for key in keys}
        drawn += _panel(_NAMES + column * (_PANEL + _GAP), each["name"], rates)
    return "\n".join([*drawn, "</svg>"]) + "\n"


def _panel(x: int, name: str, rates: dict[str, tuple[float, float]]) -> list[str]:
    """Draw one set's bars, the longest as long as the panel has room."""
    record, _, count = name.partition(" x ")
    drawn = [
        f'<text x="{x}" y="{_TOP - 24}" class="h">{escape(record)}</text>',
        f'<text x="{x}" y="{_TOP - 9}" class="q">{escape(f"{count} records" if count else "")}</text>',
    ]
    unit = (_PANEL - _ROOM) / (max(map(max, rates.values()), default=0) or 1)
    for row, (key, pair) in enumerate(rates.items()):
        y = _TOP + row * _LINE
        kind = "y" if key.startswith("yogadl") and key != "yogadl_014" else "p"
        for number, rate in enumerate(pair):
            shade = " w" if number else ""
            drawn.append(
                f'<rect class="{kind}{shade}" x="{x}" y="{y + 8 * number + 2}" width="{rate * unit:.1f}"'
                ' height="7" rx="1"/>'
            )
        best = max(pair)
        shown = shown_number(best) if best else "-"
        drawn.append(f'<text x="{x + best * unit + 5:.1f}" y="{y + 14}" class="q">{shown}</text>')
    return drawn
