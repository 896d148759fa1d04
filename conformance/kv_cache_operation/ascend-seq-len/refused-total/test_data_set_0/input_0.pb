
Bnew_kvJ@eAfBgChDiEjFkGlHmInJoKp