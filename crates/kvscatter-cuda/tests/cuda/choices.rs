//! Checks that the spread of a launch over a device does not change a byte of the result.

use kvscatter_cuda::{DeviceWrite, LaunchConfig};

use crate::abi::StatusWords;
use crate::device::Memory;
use crate::fake::{is_fake, threads};
use crate::rig::{ROW, Rig, SAMPLES, SLOTS, written};

fn choices() -> Vec<LaunchConfig> {
    let default = LaunchConfig::DEFAULT;
    let mut choices = vec![default];
    for value in [0, 1, 2, 3, 64, u32::MAX] {
        choices.extend([
            LaunchConfig { small_table_jobs: value, ..default },
            LaunchConfig { max_threads_per_block: value, ..default },
            LaunchConfig { min_threads_per_block: value, ..default },
            LaunchConfig { max_vectors_per_thread: value, min_blocks_per_multiprocessor: 0, ..default },
            LaunchConfig { min_blocks_per_multiprocessor: value, max_threads_per_block: 1, ..default },
        ]);
    }
    choices
}

#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn every_choice_writes_the_same() {
    let nothing_bad = StatusWords { bad_samples: 0, first_sample: 0, first_value: 0 };
    for caches in [1, 2, 3, 130] {
        let rig = Rig::new(caches);
        let presents: Vec<_> = (0..caches).map(|_| Memory::of(&[0; SAMPLES * SLOTS * ROW])).collect();
        for choices in choices() {
            for cache in &rig.caches {
                cache.fill(&written(0, &[]));
            }
            let present = rig.present(&presents).with_launch_config(&choices);
            assert_eq!(rig.run(&present, [1, 3]), nothing_bad, "{choices:?}");
            let write = rig.write().with_launch_config(&choices);
            assert_eq!(rig.run(&write, [2, 0]), nothing_bad, "{choices:?}");
            rig.assert_written(&[[Some(2), Some(0)]]);
            for (number, present) in presents.iter().enumerate() {
                assert_eq!(present.read(), written(number, &[[Some(1), Some(3)]]), "{choices:?}");
                present.fill(&[0; SAMPLES * SLOTS * ROW]);
            }
        }
    }
}

#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn a_choice_is_that_of_the_launch() {
    if !is_fake() {
        return;
    }
    let rig = Rig::new(2);
    let threads_of = |write: &DeviceWrite| {
        rig.run(write, [0, 0]);
        threads()
    };
    let unchosen = threads_of(&rig.write());
    assert!(unchosen > 1);
    assert_eq!(threads_of(&rig.write().with_launch_config(&LaunchConfig::DEFAULT)), unchosen);
    let alone = LaunchConfig { max_threads_per_block: 1, ..LaunchConfig::DEFAULT };
    assert_eq!(threads_of(&rig.write().with_launch_config(&alone)), 1);
}
