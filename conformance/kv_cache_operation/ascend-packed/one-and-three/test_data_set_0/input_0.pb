
Bnew_kvJ @eAfBgChDiEjFkGlHmInJoKpLqMrNsOt