use super::{Key, key_count};

/// Not in any list.
const OUT: u8 = u8::MAX;

/// `K` doubly linked lists over the keys `0..n_keys`; a key is in at most one of them.
///
/// The links lie in one array with a sentinel for each list behind the keys, so that no
/// operation has an end to check and all are O(1).
pub(crate) struct Lists<const K: usize> {
    nodes: Vec<Node>,
    len: [usize; K],
    n_keys: u32,
}

#[derive(Clone, Copy)]
struct Node {
    prev: u32,
    next: u32,
    list: u8,
}

impl<const K: usize> Lists<K> {
    pub(crate) fn new(n_keys: usize) -> Self {
        let n_keys = key_count(n_keys);
        let mut nodes = vec![Node { prev: 0, next: 0, list: OUT }; n_keys as usize];
        for (list, at) in (0..K as u8).zip(n_keys..) {
            nodes.push(Node { prev: at, next: at, list });
        }
        Self { nodes, len: [0; K], n_keys }
    }

    /// Keys in `list`.
    pub(crate) fn len(&self, list: u8) -> usize {
        self.len[usize::from(list)]
    }

    /// The list that `key` is in.
    #[inline]
    pub(crate) fn list_of(&self, key: Key) -> Option<u8> {
        debug_assert!(key < self.n_keys);
        let list = self.nodes[key as usize].list;
        (list != OUT).then_some(list)
    }

    /// Puts `key`, which is in no list, at the front of `list`.
    #[inline]
    pub(crate) fn push_front(&mut self, list: u8, key: Key) {
        debug_assert!(self.list_of(key).is_none());
        let head = self.n_keys + u32::from(list);
        let next = self.nodes[head as usize].next;
        self.nodes[key as usize] = Node { prev: head, next, list };
        self.nodes[next as usize].prev = key;
        self.nodes[head as usize].next = key;
        self.len[usize::from(list)] += 1;
    }

    /// Takes `key` out of the list it is in.
    #[inline]
    pub(crate) fn remove(&mut self, key: Key) {
        let Node { prev, next, list } = self.nodes[key as usize];
        debug_assert!(list != OUT && key < self.n_keys);
        self.nodes[prev as usize].next = next;
        self.nodes[next as usize].prev = prev;
        self.nodes[key as usize].list = OUT;
        self.len[usize::from(list)] -= 1;
    }

    /// Moves `key` from the list it is in to the front of `list`.
    #[inline]
    pub(crate) fn move_front(&mut self, list: u8, key: Key) {
        self.remove(key);
        self.push_front(list, key);
    }

    /// The oldest key of `list`.
    pub(crate) fn back(&self, list: u8) -> Option<Key> {
        self.before(list, self.n_keys + u32::from(list))
    }

    /// The key next to the front after `key`, or after the sentinel.
    fn before(&self, list: u8, key: Key) -> Option<Key> {
        debug_assert!(self.nodes[key as usize].list == list);
        let prev = self.nodes[key as usize].prev;
        (prev < self.n_keys).then_some(prev)
    }

    /// The keys of `list` from the oldest to the newest.
    pub(crate) fn oldest_first(&self, list: u8) -> impl Iterator<Item = Key> + '_ {
        std::iter::successors(self.back(list), move |&key| self.before(list, key))
    }

    /// The oldest key of `list` that is not pinned.
    #[inline]
    pub(crate) fn victim(&self, list: u8, pinned: &[Key]) -> Option<Key> {
        self.oldest_first(list).find(|key| !pinned.contains(key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_in_one_list_and_order_is_by_arrival() {
        let mut lists = Lists::<2>::new(5);
        for key in [0, 1, 2] {
            lists.push_front(0, key);
        }
        lists.move_front(1, 1);
        lists.move_front(0, 0);
        assert_eq!(lists.oldest_first(0).collect::<Vec<_>>(), [2, 0]);
        assert_eq!(lists.oldest_first(1).collect::<Vec<_>>(), [1]);
        assert_eq!((lists.list_of(1), lists.list_of(4)), (Some(1), None));
        assert_eq!((lists.len(0), lists.len(1)), (2, 1));
        assert_eq!(lists.victim(0, &[2]), Some(0));
        assert_eq!(lists.victim(0, &[2, 0]), None);
        lists.remove(2);
        lists.remove(0);
        assert_eq!((lists.back(0), lists.len(0)), (None, 0));
    }
}
