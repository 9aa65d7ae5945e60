"""The API's objects: their kinds and columns, names, labels and views."""
