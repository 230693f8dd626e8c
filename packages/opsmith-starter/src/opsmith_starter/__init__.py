"""The starter models of Opsmith, as data: a folder for each beside this file. `opsmith.starter.folder(name)` finds them."""
