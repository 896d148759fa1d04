*2TvB
past_cache