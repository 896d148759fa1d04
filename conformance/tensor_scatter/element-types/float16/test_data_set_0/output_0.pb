
Bpresent_cacheJ1234)*78-	.56