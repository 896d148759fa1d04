"	.SxÂç
/TyÃè0UzŸÄéBupdate