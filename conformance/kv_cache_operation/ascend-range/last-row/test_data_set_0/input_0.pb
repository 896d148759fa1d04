
Bnew_kvJ(@eAfBgChDiEjFkGlHmInJoKpLqMrNsOtPuQvRwSx