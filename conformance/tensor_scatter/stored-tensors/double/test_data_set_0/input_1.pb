BupdateR	.SxÂç
/TyÃè0UzŸÄé