
Bnew_kvJ@eAfBgChDiEjFkGl