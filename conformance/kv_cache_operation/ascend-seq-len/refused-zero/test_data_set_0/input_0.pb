
Bnew_kvJ@eAfBgCh