
Bnew_kvJxùyûzü{†|°}¢~£§