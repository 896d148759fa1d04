B
past_cacheJ	2Tv˜º2T