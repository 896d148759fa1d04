
BupdateJ E!F"G#H$I%J&K'L