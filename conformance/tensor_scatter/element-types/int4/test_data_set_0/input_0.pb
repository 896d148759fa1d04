B
past_cacheJ2Tv˜º