//! Measures attention over a static cache: kvscatter's kernels, directly and as ONNX Runtime's plugin, against other
//! libraries, the memory and the multiply-adds.

mod case;
mod scene;
mod subjects;

use std::time::Duration;

pub(crate) use self::case::Attention;
use self::scene::Scene;
use crate::measure::{Budget, Prepared};
use crate::results::Numbers;
use crate::runtimes::Runtimes;
use crate::suite::Case;

pub(crate) const CASES: &str = include_str!("../attention.toml");
pub(crate) const CACHE_TYPES: &str = include_str!("../cache-types.toml");

impl Case for Attention {
    type Scene = Scene;
    type Libraries = Runtimes;

    fn name(&self) -> &str {
        &self.name
    }

    fn check(&self) -> Result<(), String> {
        let bad = |valid: &usize| *valid < self.queries || *valid > self.capacity;
        let reason = match () {
            () if self.heads == 0 || !self.query_heads.is_multiple_of(self.heads) => "heads disagree",
            () if self.queries == 0 || self.threads == 0 || self.valid.is_empty() => "nothing to do",
            () if self.valid.iter().any(bad) => "valid slots are outside the cache, or fewer than queries",
            () => return Ok(()),
        };
        Err(reason.to_owned())
    }

    fn numbers(&self) -> Numbers {
        let valid: usize = self.valid.iter().sum();
        let numbers = [("valid", valid), ("capacity", self.capacity), ("threads", self.threads)];
        numbers.map(|(name, number)| (name, number as f64)).into()
    }

    fn scene(&self) -> Result<Scene, String> {
        Scene::new(self)
    }

    fn subject(name: &str, scene: &Scene, runtimes: &Runtimes) -> Prepared<Scene> {
        subjects::prepare(name, scene, runtimes)
    }

    /// A long prefill takes so long that few rounds suffice.
    fn budget(&self, quick: bool) -> Budget {
        /// The number of scores from which a prefill is long.
        const LONG: usize = 32 << 20;
        let is_long = self.query_heads * self.seen() > LONG;
        match (quick, is_long) {
            (true, _) => Budget { time: Duration::from_millis(200), min_rounds: 3 },
            (false, true) => Budget { time: Duration::ZERO, min_rounds: 5 },
            (false, false) => Budget { time: Duration::from_secs(3), min_rounds: 11 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::scene::Scene;
    use super::{Attention, CACHE_TYPES, CASES};
    use crate::runtimes::Runtimes;
    use crate::suite::{Case, Suite};

    fn small(case: &Attention) -> Attention {
        let valid = case.valid.iter().map(|valid| valid.div_ceil(40) + 3).collect::<Vec<_>>();
        // A text of 16,384 tokens would not fit.
        let capacity = valid.iter().copied().max().unwrap_or(0).max(120);
        Attention { capacity, queries: case.queries.min(3), layers: 2, valid, ..case.clone() }
    }

    /// Runs every subject of small cases. Those that need a library which is absent are left out.
    #[test]
    fn every_subject_computes_what_the_oracle_does() {
        let runtimes = Runtimes::find(None, None).unwrap();
        let suites = [CASES, CACHE_TYPES].map(|cases| Suite::<Attention>::parse(cases).unwrap());
        let mut checked = 0;
        for row in suites.iter().flat_map(|suite| &suite.rows) {
            for case in row.cases.iter().map(small) {
                let mut scene = Scene::new(&case).unwrap();
                for name in &row.subjects {
                    match Attention::subject(name, &scene, &runtimes) {
                        Ok(mut subject) => {
                            subject.time(&mut scene, 2).unwrap();
                            subject
                                .check(&mut scene)
                                .unwrap_or_else(|why| panic!("{}: {name}: {why}", case.name));
                            checked += 1;
                        }
                        Err(why) => assert!(!why.contains("is no subject"), "{name}"),
                    }
                }
            }
        }
        assert!(checked > 100, "{checked}");
    }

    #[test]
    fn a_wrong_result_is_found() {
        let suite = Suite::<Attention>::parse(CASES).unwrap();
        let case = small(&suite.rows[0].cases[0]);
        for name in ["kvscatter", "tract", "candle"] {
            let mut scene = Scene::new(&case).unwrap();
            let mut subject = Attention::subject(name, &scene, &Runtimes::none()).unwrap();
            subject.check(&mut scene).unwrap();
            scene.expect_one_slot_less();
            assert!(subject.check(&mut scene).is_err(), "{name}");
        }
    }

    #[test]
    fn an_invalid_case_is_refused() {
        let check = |heads: usize, valid: &str| {
            let text = format!(
                "name = 'c'\nelement = 'float32'\nquery_heads = 8\nheads = {heads}\ncapacity = 9\nvalid = {valid}"
            );
            toml::from_str::<Attention>(&text).unwrap().check()
        };
        assert_eq!(check(4, "[9, 1]"), Ok(()));
        for (heads, valid, expected) in [
            (4, "[10]", "outside"),
            (4, "[0]", "outside"),
            (3, "[1]", "heads disagree"),
            (4, "[]", "nothing"),
        ] {
            assert!(check(heads, valid).unwrap_err().contains(expected), "{heads} {valid}");
        }
    }

    #[test]
    fn a_query_sees_the_keys_up_to_its_own() {
        let suite = Suite::<Attention>::parse(CASES).unwrap();
        let seen = |name: &str| {
            suite.rows.iter().flat_map(|row| &row.cases).find(|case| case.name == name).unwrap().seen()
        };
        assert_eq!(seen("8-float32-64"), 64);
        assert_eq!(seen("prefill-512"), 512 * 513 / 2);
        assert_eq!(seen("prefill-128-into-2000"), 128 * 2000 + 128 * 129 / 2);
    }
}
