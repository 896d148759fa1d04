
BpresentJxùyûzü{†)*+,-	.
/0123456789:;<=>?@ABCD|°}¢~£§$I%J&K'L(M)N*O+P,Q-R.S/T0U1V2W3X4Y5Z6[7\8]9^:_;`<a=b>c?d@eAfBgChDiEjFkGlHmInJoKpLqMrNsOtPuQvRwSxTyUzV{W|X}Y~Z[Ä\Å]Ç^É_Ñ`ÖaÜbácàdâeäfãgåhçiéjèkêlëmínìoîpïqñrósòtôuövõwú