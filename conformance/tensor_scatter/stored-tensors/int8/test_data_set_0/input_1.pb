*	
Bupdate