"""The fleet: what there is, who has it, what is wrong, what is left and whether it is of use together.

A module for each topic, which adds its rows to the board.
"""
