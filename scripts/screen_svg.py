#!/usr/bin/env python3
"""Turns a terminal's screen with colours (`tmux capture-pane -e -p`) from standard input into an SVG picture.

  scripts/screen_svg.py COLUMNS >picture.svg
"""

import html
import re
import sys

CELL_WIDTH, CELL_HEIGHT, MARGIN = 8.4, 18, 14
# A dark theme with good contrast, so that the picture reads alike on light and dark pages.
BACKGROUND, TEXT, DIM = "#16181d", "#e6e6e3", "#8b8f98"
COLORS = ["#3b4048", "#ef6b73", "#8fce9b", "#e2c07a", "#7aa8f0", "#cf8fe0", "#6cc7cf", "#e6e6e3"]


class Look:
    """The attributes that SGR sequences set."""

    def __init__(self):
        self.reset()

    def reset(self):
        self.color, self.bold, self.dim, self.reverse = TEXT, False, False, False

    def apply(self, codes):
        values = [int(code or 0) for code in codes.split(";")]
        while values:
            code = values.pop(0)
            if code == 0:
                self.reset()
            elif code == 1:
                self.bold = True
            elif code == 2:
                self.dim = True
            elif code == 7:
                self.reverse = True
            elif code == 22:
                self.bold = self.dim = False
            elif code == 27:
                self.reverse = False
            elif 30 <= code <= 37 or 90 <= code <= 97:
                self.color = COLORS[code % 10]
            elif code == 39:
                self.color = TEXT
            elif code in (38, 48) and values[:1] == [5]:
                number = values[1] if len(values) > 1 else 7
                if code == 38 and number < 16:
                    self.color = COLORS[number % 8]
                del values[:2]

    def style(self):
        color = DIM if self.dim else self.color
        weight = ' font-weight="700"' if self.bold else ""
        return f'fill="{BACKGROUND if self.reverse else color}"{weight}'


def pieces(line, look):
    """The parts of a line with one look each: first column, text, style, and whether it is reversed."""
    column = 0
    for part in re.split(r"(\x1b\[[0-9;]*m)", line):
        if part.startswith("\x1b["):
            look.apply(part[2:-1])
        elif part:
            yield column, part, look.style(), look.reverse
            column += len(part)


def main():
    columns = int(sys.argv[1])
    lines = sys.stdin.read().rstrip("\n").split("\n")
    width, height = columns * CELL_WIDTH + 2 * MARGIN, len(lines) * CELL_HEIGHT + 2 * MARGIN
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img">',
        f'<rect width="100%" height="100%" rx="10" fill="{BACKGROUND}"/>',
        '<g font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="14">',
    ]
    look = Look()
    for row, line in enumerate(lines):
        y = MARGIN + (row + 0.75) * CELL_HEIGHT
        for column, text, style, reverse in pieces(line, look):
            x, length = MARGIN + column * CELL_WIDTH, len(text) * CELL_WIDTH
            if reverse:
                top = MARGIN + row * CELL_HEIGHT
                out.append(f'<rect x="{x:.1f}" y="{top}" width="{length:.1f}" height="{CELL_HEIGHT}" fill="{TEXT}"/>')
            shown = text.strip()
            if shown:
                # Spaces around a text would be collapsed.
                x += (len(text) - len(text.lstrip())) * CELL_WIDTH
                length = len(shown) * CELL_WIDTH
                # Browsers reset the white space of a group at each text.
                place = f'x="{x:.1f}" y="{y:.1f}" textLength="{length:.1f}" style="white-space:pre"'
                out.append(f"<text {place} {style}>{html.escape(shown)}</text>")
    out += ["</g>", "</svg>"]
    print("\n".join(out))


if __name__ == "__main__":
    main()
