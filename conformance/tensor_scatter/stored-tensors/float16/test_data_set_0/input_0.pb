
*€JL‚NƒP„R…T†V‡XˆZB
past_cache