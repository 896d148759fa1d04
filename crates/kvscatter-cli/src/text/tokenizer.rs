//! Turns text into tokens and back.

use std::panic;
use std::path::PathBuf;

use serde::de::IgnoredAny;
use tokenizers::AddedToken;

use super::{Config, MAX_TOKENIZER, ModelFiles, TextError};
use crate::error::CommandError;
use crate::files;

/// The character that a decoder returns for bytes that are not (yet) a character.
const REPLACEMENT: char = char::REPLACEMENT_CHARACTER;

/// The tokens that a [`TextStream`] decodes together. A decoder may need the token before a token, but not a whole
/// text.
const WINDOW: usize = 8;

/// Reads a tokenizer that neither truncates nor pads.
fn parsed(bytes: &[u8]) -> Result<tokenizers::Tokenizer, String> {
    // The library panics for some files that are not JSON, and may for others.
    serde_json::from_slice::<IgnoredAny>(bytes).map_err(|error| error.to_string())?;
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let read = panic::catch_unwind(|| {
        let mut tokenizer = tokenizers::Tokenizer::from_bytes(bytes)?;
        tokenizer.with_padding(None).with_truncation(None)?;
        Ok::<_, tokenizers::Error>(tokenizer)
    });
    panic::set_hook(hook);
    let read = read.map_err(|_| "a part of it has an unknown form".to_owned())?;
    read.map_err(|error| error.to_string())
}

/// The tokenizer of a model.
#[derive(Debug)]
pub(crate) struct Tokenizer {
    path: PathBuf,
    inner: tokenizers::Tokenizer,
    /// The tokens before and after every text. `None` if the tokenizer itself knows them.
    ends_of_text: Option<[Vec<u32>; 2]>,
}

impl Tokenizer {
    /// Reads `tokenizer.json`. As in transformers, it does not truncate or pad, `add_bos_token` and `add_eos_token` of
    /// the configuration replace the tokens that it would add to a text, and the special tokens that the configuration
    /// names have no text.
    ///
    /// # Errors
    /// Returns [`TextError::NoTokenizer`] if there is no such file, and an error if it is not a tokenizer.
    pub(crate) fn read(files: &ModelFiles, config: &Config) -> Result<Self, CommandError> {
        let path = files.find("tokenizer.json");
        let path = path.ok_or_else(|| TextError::NoTokenizer { folder: files.folder() })?;
        let bytes = files::read_bytes(&path, MAX_TOKENIZER)?;
        let problem = |problem: String| TextError::Tokenizer { path: path.clone(), problem };
        let mut inner = parsed(&bytes).map_err(problem)?;
        let added = inner.get_added_vocabulary();
        let mut special = config.all_special_tokens(|token| added.get_vocab().contains_key(token));
        // Tokens that are special keep their other properties, and tokens that the model lacks would get new ids.
        special.retain(|token| !added.is_special_token(token) && inner.token_to_id(token).is_some());
        let special = special.into_iter().map(|token| AddedToken::from(token, true));
        inner.add_special_tokens(special).map_err(|error| problem(error.to_string()))?;
        let id = |token: Option<&str>| token.and_then(|token| inner.token_to_id(token)).into_iter().collect();
        let ends_of_text = config.ends_of_text().map(|tokens| tokens.map(id));
        Ok(Self { path, inner, ends_of_text })
    }

    /// Returns the tokens of a prompt, with the special tokens that begin or end a text.
    pub(crate) fn encode(&self, text: &str) -> Result<Vec<i64>, TextError> {
        match &self.ends_of_text {
            None => self.tokens(text, true),
            Some([before, after]) => {
                let tokens = |tokens: &[u32]| tokens.iter().copied().map(i64::from).collect::<Vec<_>>();
                Ok([tokens(before), self.tokens(text, false)?, tokens(after)].concat())
            }
        }
    }

    /// Returns the tokens of a text that contains its special tokens, such as that of a chat template.
    pub(crate) fn encode_template(&self, text: &str) -> Result<Vec<i64>, TextError> {
        self.tokens(text, false)
    }

    fn tokens(&self, text: &str, with_special_tokens: bool) -> Result<Vec<i64>, TextError> {
        let encoding = self
            .inner
            .encode_fast(text, with_special_tokens)
            .map_err(|error| TextError::Encode { path: self.path.clone(), problem: error.to_string() })?;
        Ok(encoding.get_ids().iter().copied().map(i64::from).collect())
    }

    /// Returns the id of a token.
    pub(crate) fn id(&self, token: &str) -> Option<i64> {
        self.inner.token_to_id(token).map(i64::from)
    }

    /// Checks that a model has the tokens of this tokenizer. Added tokens may be missing, because some models lack
    /// those of other media. A prompt cannot contain them.
    ///
    /// # Errors
    /// Returns [`TextError::OtherVocabulary`] for the last token that the model lacks.
    pub(crate) fn check_vocabulary(&self, vocabulary: usize) -> Result<(), TextError> {
        let added = self.inner.get_added_tokens_decoder();
        let own = self.inner.get_vocab(false).into_iter().filter(|(_, id)| !added.contains_key(id));
        let last = own.max_by_key(|(_, id)| *id);
        match last.filter(|(_, id)| usize::try_from(*id).map_or(true, |id| id >= vocabulary)) {
            None => Ok(()),
            Some((token, id)) => {
                Err(TextError::OtherVocabulary { path: self.path.clone(), token, id, vocabulary })
            }
        }
    }

    /// Starts to decode a text token by token.
    pub(crate) fn stream(&self) -> TextStream<'_> {
        TextStream { tokenizer: self, window: Vec::new(), sent: 0, last_start: 0 }
    }

    /// Decodes tokens without the special ones.
    fn decode(&self, tokens: &[u32]) -> Result<String, TextError> {
        self.inner.decode(tokens, true).map_err(|error| TextError::Decode {
            path: self.path.clone(),
            id: tokens.last().copied().map_or(0, i64::from),
            problem: error.to_string(),
        })
    }

    /// Returns a token, unless it has no text.
    fn with_text(&self, id: i64) -> Option<(u32, String)> {
        let id = u32::try_from(id).ok()?;
        let token = self.inner.id_to_token(id)?;
        let is_special = self.inner.get_added_vocabulary().is_special_token(&token);
        (!is_special).then_some((id, token))
    }
}

/// Returns whether a token stands for one byte of a character. Such tokens are decoded together with those after them.
fn is_byte(token: &str) -> bool {
    let digits = token.strip_prefix("<0x").and_then(|token| token.strip_suffix('>'));
    digits.is_some_and(|digits| digits.len() == 2 && u8::from_str_radix(digits, 16).is_ok())
}

/// Decodes a text token by token. The pieces together are the text that all tokens give together, and no piece ends in
/// the middle of a character.
///
/// Only the last tokens are decoded again for every token, because a text may be long.
#[derive(Debug)]
pub(crate) struct TextStream<'t> {
    tokenizer: &'t Tokenizer,
    /// The last tokens.
    window: Vec<u32>,
    /// The length of the part of the window's text that has been returned.
    sent: usize,
    /// The start of the tokens after which a whole piece was returned last.
    last_start: usize,
}

impl TextStream<'_> {
    /// Takes the next token. Returns the text that is certain now, which may be empty.
    pub(crate) fn push(&mut self, token: i64) -> Result<String, TextError> {
        let Some((id, token)) = self.tokenizer.with_text(token) else { return Ok(String::new()) };
        self.window.push(id);
        if is_byte(&token) {
            return Ok(String::new());
        }
        let text = self.tokenizer.decode(&self.window)?;
        // At most the last character is incomplete.
        let complete = text.strip_suffix(REPLACEMENT).unwrap_or(&text).len();
        let piece = text.get(self.sent..complete).unwrap_or_default().to_owned();
        self.sent = self.sent.max(complete);
        if complete == text.len() {
            self.shorten()?;
        }
        Ok(piece)
    }

    /// Returns the rest of the text, with replacement characters for incomplete ones.
    pub(crate) fn finish(&mut self) -> Result<String, TextError> {
        let text = self.tokenizer.decode(&self.window)?;
        let piece = text.get(self.sent..).unwrap_or_default().to_owned();
        self.sent = text.len();
        Ok(piece)
    }

    /// Forgets tokens that no later token depends on. Some decoders remove the blank before the first token, so at
    /// least one token with a text stays.
    fn shorten(&mut self) -> Result<(), TextError> {
        if self.window.len() >= WINDOW {
            let rest = self.window.get(self.last_start..).unwrap_or_default();
            let text = self.tokenizer.decode(rest)?;
            if !text.is_empty() {
                self.window = rest.to_vec();
                self.sent = text.len();
            }
        }
        self.last_start = self.window.len();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::{Value, json};
    use tempfile::TempDir;

    use super::{Config, ModelFiles, REPLACEMENT, Tokenizer};

    /// A blank as tokenizers of bytes write it, the bytes of `é` and of an emoji, bytes that begin no character, and
    /// tokens of several characters. The tokens of [`BYTE_TOKENS`] stand for single bytes.
    const TOKENS: [&str; 14] = [
        "\u{120}",
        "\u{120}the",
        "a",
        "\u{c3}",
        "\u{a9}",
        "\u{f0}",
        "\u{141}",
        "\u{13a}",
        "\u{122}",
        "\u{ff}",
        ".",
        "is",
        "\u{ef}\u{bf}\u{bd}",
        "n't",
    ];
    const BYTE_TOKENS: [&str; 14] = [
        "▁", "▁the", "a", "<0xC3>", "<0xA9>", "<0xF0>", "<0x9F>", "<0x98>", "<0x80>", "<0xFF>", ".", "is",
        "\u{fffd}", "n't",
    ];

    fn tokenizer(folder: &TempDir, tokens: &[&str], decoder: Value, other: Value) -> Tokenizer {
        let tokens = ["<s>"].iter().chain(tokens).zip(0..);
        let vocabulary: serde_json::Map<_, _> =
            tokens.map(|(token, id)| ((*token).to_owned(), json!(id))).collect();
        let mut content = json!({
            "version": "1.0",
            "added_tokens": [{
                "id": 0, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
                "special": true
            }],
            "pre_tokenizer": null, "normalizer": null, "post_processor": null, "decoder": decoder,
            "model": {"type": "BPE", "vocab": vocabulary, "merges": []}
        });
        content.as_object_mut().unwrap().extend(other.as_object().unwrap().clone());
        std::fs::write(folder.path().join("tokenizer.json"), content.to_string()).unwrap();
        read(folder.path()).unwrap()
    }

    fn read(folder: &Path) -> Result<Tokenizer, String> {
        let files = ModelFiles { folder: folder.to_owned() };
        let config = Config::read(&files).map_err(|error| error.to_string())?;
        Tokenizer::read(&files, &config).map_err(|error| error.to_string())
    }

    fn pieces(tokenizer: &Tokenizer, tokens: &[i64]) -> Vec<String> {
        let mut stream = tokenizer.stream();
        let mut pieces: Vec<_> = tokens.iter().map(|token| stream.push(*token).unwrap()).collect();
        pieces.push(stream.finish().unwrap());
        pieces
    }

    /// Returns the decoders of most models.
    fn decoders() -> [(&'static [&'static str], Value); 4] {
        let blank = json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "});
        let strip = json!({"type": "Strip", "content": " ", "start": 1, "stop": 0});
        let llama = json!([blank, {"type": "ByteFallback"}, {"type": "Fuse"}, strip]);
        let metaspace =
            json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true});
        [
            (
                &TOKENS,
                json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}),
            ),
            (&BYTE_TOKENS, json!({"type": "Sequence", "decoders": llama})),
            (&BYTE_TOKENS, json!({"type": "Sequence", "decoders": [{"type": "ByteFallback"}, metaspace]})),
            (&TOKENS, json!({"type": "WordPiece", "prefix": "##", "cleanup": true})),
        ]
    }

    /// Decodes texts of random tokens, also of special ones and of ids without a token.
    #[test]
    fn pieces_join_to_the_text_of_all_tokens() {
        let folder = TempDir::new().unwrap();
        for (index, (tokens, decoder)) in decoders().into_iter().enumerate() {
            let tokenizer = tokenizer(&folder, tokens, decoder, json!({}));
            let mut random = 1_u64;
            for length in 0..400 {
                let next = || {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    i64::try_from((random >> 33) % 16).unwrap()
                };
                let ids: Vec<i64> = std::iter::repeat_with(next).take(length % 60).collect();
                let all: Vec<u32> = ids.iter().map(|id| u32::try_from(*id).unwrap()).collect();
                let pieces = pieces(&tokenizer, &ids);
                assert_eq!(pieces.concat(), tokenizer.decode(&all).unwrap(), "decoder {index}: {ids:?}");
            }
        }
    }

    #[test]
    fn a_character_comes_as_a_whole_and_as_soon_as_it_is_complete() {
        let folder = TempDir::new().unwrap();
        let [bytes, fallback, ..] = decoders();
        let of_bytes = tokenizer(&folder, bytes.0, bytes.1, json!({}));
        let emoji = [3, 6, 7, 8, 9, 3, 4, 5];
        assert_eq!(pieces(&of_bytes, &emoji), ["a", "", "", "", "😀", "a", "", "é", ""]);
        // Bytes that are no character are given back when it is clear that they are none.
        assert_eq!(pieces(&of_bytes, &[10, 10, 3, 4]), ["", "\u{fffd}", "\u{fffd}a", "", "\u{fffd}"]);
        let of_fallback = tokenizer(&folder, fallback.0, fallback.1, json!({}));
        assert_eq!(pieces(&of_fallback, &[2, 4, 5, 2, 1, 3]), ["the", "", "", "é the", " ", "a", ""]);
    }

    /// Decodes 4,000 tokens again and again if the stream does not forget tokens. The last of them are never complete.
    #[test]
    fn the_time_of_a_token_does_not_grow_with_the_text() {
        let folder = TempDir::new().unwrap();
        let [(tokens, decoder), ..] = decoders();
        let tokenizer = tokenizer(&folder, tokens, decoder, json!({}));
        let mut stream = tokenizer.stream();
        for token in [2, 4, 5, 3].into_iter().cycle().take(4000) {
            stream.push(token).unwrap();
            assert!(stream.window.len() < 32, "{}", stream.window.len());
        }
        assert!(!stream.push(3).unwrap().contains(REPLACEMENT));
    }

    #[test]
    fn special_tokens_are_those_of_transformers() {
        let folder = TempDir::new().unwrap();
        let [(_, decoder), ..] = decoders();
        let begins = json!({
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}
            },
            "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
            "padding": {
                "strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0,
                "pad_type_id": 0, "pad_token": "<s>"
            }
        });
        let own = tokenizer(&folder, &["a", "b"], decoder, begins);
        // A text is neither cut nor padded.
        assert_eq!(own.encode("abab").unwrap(), [0, 1, 2, 1, 2]);
        assert_eq!(own.encode_template("<s>ab").unwrap(), [0, 1, 2]);
        for (config, expected) in [
            (json!({"bos_token": "<s>", "add_bos_token": false}), vec![1]),
            (json!({"bos_token": {"content": "<s>"}, "add_bos_token": true}), vec![0, 1]),
            (json!({"eos_token": "<s>", "add_bos_token": true, "add_eos_token": true}), vec![1, 0]),
            (json!({"bos_token": "<s>"}), vec![0, 1]),
        ] {
            std::fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).unwrap();
            assert_eq!(read(folder.path()).unwrap().encode("a").unwrap(), expected, "{config}");
        }
    }

    #[test]
    fn a_model_must_have_the_tokens_of_its_tokenizer() {
        let folder = TempDir::new().unwrap();
        let [(tokens, decoder), ..] = decoders();
        let added = json!({"added_tokens": [{
            "id": 15, "content": "<image>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            "special": true
        }]});
        // The vocabulary may contain the added token, as that of GPT-2 does.
        for tokens in [tokens, &[tokens, &["<image>"]].concat()] {
            let tokenizer = tokenizer(&folder, tokens, decoder.clone(), added.clone());
            // The largest token is 14, and the model need not have the added one.
            for vocabulary in [15, 16, 1000] {
                tokenizer.check_vocabulary(vocabulary).unwrap();
            }
            let error = tokenizer.check_vocabulary(14).unwrap_err().to_string();
            let expected =
                "has the token \"n't\" with id 14, but the model has 14 tokens; it belongs to another model";
            assert!(error.ends_with(expected), "{error}");
        }
    }

    /// Compares with `decode(skip_special_tokens=True)` and `encode(add_special_tokens=False)` of transformers 5.24.
    #[test]
    fn tokens_without_a_text_are_those_of_transformers() {
        let folder = TempDir::new().unwrap();
        let [(_, decoder), ..] = decoders();
        let added = |special: bool| {
            json!({"added_tokens": [{
                "id": 2, "content": "<e>", "single_word": false, "lstrip": true, "rstrip": false, "normalized": false,
                "special": special
            }]})
        };
        let (own, none) = ([2, 3], [3]);
        for (other, config, text, tokens) in [
            (json!({"added_tokens": []}), json!({"eos_token": "<e>"}), "b", &own[..]),
            (json!({"added_tokens": []}), json!({"eos_token": {"content": "<e>"}}), "b", &own),
            (json!({"added_tokens": []}), json!({"additional_special_tokens": ["<e>"]}), "b", &own),
            (json!({"added_tokens": []}), json!({}), "<e>b", &none),
            (json!({"added_tokens": []}), json!({"eos_token": "<unknown>"}), "<e>b", &none),
            (added(true), json!({}), "b", &own),
            (added(true), json!({"eos_token": "<e>"}), "b", &own),
            (added(false), json!({}), "<e>b", &own),
            (added(false), json!({"eos_token": "<e>"}), "b", &own),
            (added(false), json!({"extra_special_tokens": ["<e>"]}), "<e>b", &own),
            (
                added(false),
                json!({"added_tokens_decoder": {"2": {"content": "<e>", "special": true}}}),
                "b",
                &own,
            ),
        ] {
            drop(tokenizer(&folder, &["a", "<e>", "b"], decoder.clone(), other.clone()));
            std::fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).unwrap();
            let tokenizer = read(folder.path()).unwrap();
            assert_eq!(pieces(&tokenizer, &[2, 3]).concat(), text, "{other} {config}");
            assert_eq!(tokenizer.encode_template("<e>b").unwrap(), tokens, "{other} {config}");
            if other == added(true) {
                assert!(tokenizer.inner.get_added_tokens_decoder()[&2].lstrip, "{config}");
            }
        }
    }

    /// Cuts and changes a tokenizer at every tenth byte. Each is refused in one line or read, and none panics.
    #[test]
    fn a_damaged_tokenizer_is_refused() {
        let folder = TempDir::new().unwrap();
        let [(tokens, decoder), ..] = decoders();
        let path = folder.path().join("tokenizer.json");
        drop(tokenizer(&folder, tokens, decoder, json!({})));
        let whole = std::fs::read(&path).unwrap();
        for at in (0..whole.len()).step_by(10) {
            let mut changed = whole.clone();
            changed[at] = b'7';
            for damaged in [&whole[..at], &changed] {
                std::fs::write(&path, damaged).unwrap();
                if let Ok(tokenizer) = read(folder.path()) {
                    let _ = tokenizer.encode("the a").map(|tokens| pieces(&tokenizer, &tokens));
                }
            }
        }
        std::fs::write(&path, b"{}").unwrap();
        let error = read(folder.path()).unwrap_err();
        assert!(error.contains("tokenizer.json: not a tokenizer: "), "{error}");
    }
}
