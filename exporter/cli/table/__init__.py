"""Tables for people: as wide as the terminal, and whole where there is none. Pure, but for `terminal`.

width     how many columns a text takes
fit       which columns and how much of each there is room for
draw      lines, with colours where they are wanted
terminal  what the output is: how wide, and whether colours are shown
"""
