"""Victims: which unused blocks go first when a group is short of blocks.

Owns the eviction order. Frees nothing itself: the index does.
Invariant: what is evicted is the smallest key, (last access, -prefix length), among everything that helps.

What helps a group is a block of its own, or a whole page of any group in which every block is unused (Jenga, SOSP'25,
section 4.3): such a page has the key of the block in it that would go last. So a page is taken from another group only
when all that is on it is older than what the group could give up itself, and no kind of layer is drained for another.

Stamps: releasing a sequence stamps its whole prefix, so a node's stamp is never older than an unused child's, and at
equal stamps the child's prefix is longer: children go first. Only leaves need to be in the heap of nodes. A piece that
falls out of its window is stamped then, long before the release: it goes before anything that could still be hit. What
is unused cannot be stamped. Keys grow as a rule, so what stands in a heap under a key that it had is left there, and
put under its own when it comes to the front: one entry each, and little to clear away, however often a prefix is hit.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import Protocol

from plait.core.errors import InvariantError
from plait.core.ids import BlockId, PageId
from plait.kv.blocks import BlockPool, BlockState
from plait.kv.images import Images, Picture
from plait.kv.nodes import Key, Node, Piece

Victim = Node | Piece | Picture


class Index(Protocol):
    """As much of the index as is needed to choose and to evict."""

    @property
    def num_nodes(self) -> int: ...
    def node(self, node_id: int) -> Node | None: ...
    def owner(self, group: int, block: BlockId) -> Node | None: ...
    def whole_node(self, group: int, block: BlockId) -> Node | None: ...
    def piece(self, group: int, block: BlockId) -> Piece | None: ...
    def nodes(self) -> list[Node]: ...
    def roots(self) -> list[Node]: ...
    def is_leaf(self, node: Node) -> bool: ...
    def remove(self, node: Node) -> None: ...
    def drop(self, piece: Piece) -> None: ...


class Victims:
    """Heaps of what may be evicted; entries that no longer fit are skipped."""

    def __init__(
        self,
        pools: Sequence[BlockPool],
        whole: Sequence[int],
        index: Index,
        images: Images,
        shares_pages: bool = True,
    ) -> None:
        """`whole`: groups whose blocks are nodes', not pieces'. `shares_pages=False`: no group has use for a page of
        another.
        """
        self._pools = tuple(pools)
        self._whole = frozenset(whole)
        self._index = index
        self._images = images
        self._nodes: list[Key] = []
        self._pieces: list[list[tuple[Key, BlockId]]] = [[] for _ in pools]
        self._pages: list[tuple[Key, int, PageId]] = []
        lends = len(pools) > 1 and shares_pages
        # A block that is a page helps everybody, and stands in its group's own heap already.
        self._for_all = [g for g, pool in enumerate(pools) if lends and pool.blocks_per_page == 1]
        self._of_many = [g for g, pool in enumerate(pools) if lends and pool.blocks_per_page > 1]
        self._page_keys: dict[tuple[int, PageId], Key] = {}
        """The newest entry of each page in its heap."""
        for g in self._of_many:
            pools[g].watch(lambda page, has_less, g=g: self._changed(g, page, has_less))  # type: ignore[misc]

    def add_node(self, node: Node) -> None:
        """A leaf of which nobody makes use any more."""
        key = node.key
        if node.listed is not None and node.listed <= key:
            return
        node.listed = key
        heapq.heappush(self._nodes, key)
        if len(self._nodes) > 64 + 2 * self._index.num_nodes:
            self._nodes = [key for key in self._nodes if self._stays_node(key)]
            heapq.heapify(self._nodes)

    def add_piece(self, piece: Piece) -> None:
        """One of which nobody makes use any more."""
        key = piece.key
        if piece.listed is not None and piece.listed <= key:
            return
        piece.listed = key
        heap = self._pieces[piece.group]
        heapq.heappush(heap, (key, piece.block))
        if len(heap) > 64 + 2 * self._pools[piece.group].counts[BlockState.EVICTABLE]:
            heap[:] = [entry for entry in heap if self._stays_piece(piece.group, entry)]
            heapq.heapify(heap)

    def rekeyed(self, node: Node) -> None:
        """An unused node of groups that keep all has another key than it had."""
        if self._index.is_leaf(node):
            self.add_node(node)
        for g in self._of_many:
            if g in self._whole and self._pools[g].is_loose(page := self._pools[g].page_of(node.blocks[g])):
                self._add_page(g, page)

    def renewed(self, piece: Piece) -> None:
        """An unused piece has another key than it had."""
        self.add_piece(piece)
        pool = self._pools[piece.group]
        if piece.group in self._of_many and pool.is_loose(pool.page_of(piece.block)):
            self._add_page(piece.group, pool.page_of(piece.block))

    def evict(self, short: Iterable[int]) -> list[Victim]:
        """Evict what goes first of all that helps one of the groups in `short`, and say what it was; nothing if nothing
        does. What could not be hit without it has gone with it.
        """
        best: Key | None = None
        victim: Victim | None = None
        nodes_help = False
        for g in dict.fromkeys([*short, *self._for_all]) if self._for_all else short:
            if g in self._whole:
                nodes_help = True
            elif g in self._images.groups:
                if (picture := self._images.first(g)) is not None and (best is None or picture.order < best):
                    best, victim = picture.order, picture
            elif (piece := self._first_piece(g)) is not None and (best is None or piece.key < best):
                best, victim = piece.key, piece
        if nodes_help and (node := self._first_node()) is not None and (best is None or node.key < best):
            best, victim = node.key, node
        page = self._first_page()
        if page is not None and (best is None or page[0] < best):
            return self._evict_page(page[1], page[2])
        if isinstance(victim, Node):
            heapq.heappop(self._nodes)  # it stands first
            self._index.remove(victim)
        elif isinstance(victim, Picture):
            self._images.drop(victim)
        elif victim is not None:
            self._index.drop(victim)
        return [] if victim is None else [victim]

    def oldest_piece(self, group: int) -> Piece | None:
        """What would go first of a group's own."""
        return self._first_piece(group)

    def check(self) -> None:
        """Raise `InvariantError` unless all that may be evicted is in its heap, under its key or a smaller one."""
        nodes, pages, pieces = set(self._nodes), set(self._pages), [set(heap) for heap in self._pieces]
        for node in [*self._index.roots(), *self._index.nodes()]:
            is_leaf = bool(self._whole) and node.parent is not None and self._index.is_leaf(node)
            if is_leaf and (node.listed is None or node.listed not in nodes or node.listed > node.key):
                raise InvariantError(f"victims: node {node.id} is evictable but not in the heap")
            for piece in node.all_pieces():
                listed = piece.listed
                is_there = listed is not None and (listed, piece.block) in pieces[piece.group] and listed <= piece.key
                if not piece.num_refs and not is_there:
                    raise InvariantError(f"victims: a block of group {piece.group} is evictable but not in the heap")
        for g in self._of_many:
            for page in self._pools[g].loose_pages():
                if (self._page_key(g, page), g, page) not in pages:
                    raise InvariantError(f"victims: page {page} of group {g} is evictable but not in the heap")

    def _first_node(self) -> Node | None:
        while self._nodes:
            if not self._stays_node(self._nodes[0]):
                heapq.heappop(self._nodes)
                continue
            node = self._index.node(self._nodes[0][2])
            if node is None or node.key == self._nodes[0]:
                return node
            node.listed = node.key
            heapq.heapreplace(self._nodes, node.key)
        return None

    def _first_piece(self, group: int) -> Piece | None:
        heap = self._pieces[group]
        while heap:
            if not self._stays_piece(group, heap[0]):
                heapq.heappop(heap)
                continue
            piece = self._index.piece(group, heap[0][1])
            if piece is None or piece.key == heap[0][0]:
                return piece
            piece.listed = piece.key
            heapq.heapreplace(heap, (piece.key, piece.block))
        return None

    def _first_page(self) -> tuple[Key, int, PageId] | None:
        while self._pages:
            key, group, page = self._pages[0]
            if self._pools[group].is_loose(page) and self._page_key(group, page) == key:
                return self._pages[0]
            heapq.heappop(self._pages)
            if self._page_keys.get((group, page)) == key:
                del self._page_keys[group, page]
        return None

    def _stays_node(self, key: Key) -> bool:
        """Whether an entry is a node's, which may be evicted; what may not is listed no more."""
        node = self._index.node(key[2])
        if node is None or node.listed != key:
            return False
        if self._index.is_leaf(node):
            return True
        node.listed = None
        return False

    def _stays_piece(self, group: int, entry: tuple[Key, BlockId]) -> bool:
        piece = self._index.piece(group, entry[1])
        if piece is None or piece.listed != entry[0]:
            return False
        if not piece.num_refs:
            return True
        piece.listed = None
        return False

    def _changed(self, group: int, page: PageId, has_less: bool) -> None:
        """A page holds cached blocks alone, now, or one less of them; then it goes when it did, as a rule: what goes
        first was taken from it.
        """
        key = self._page_keys.get((group, page)) if has_less and group in self._whole else None
        last = self._index.node(key[2]) if key is not None else None
        if last is not None and last.key == key and self._pools[group].is_cached_on(page, last.blocks[group]):
            return
        self._add_page(group, page)

    def _add_page(self, group: int, page: PageId) -> None:
        key = self._page_key(group, page)
        if self._page_keys.get((group, page)) == key:
            return
        self._page_keys[group, page] = key
        heapq.heappush(self._pages, (key, group, page))
        if len(self._pages) > 64 + 2 * sum(self._pools[g].num_unpinned_pages for g in self._of_many):
            self._page_keys = {
                (g, p): self._page_key(g, p) for g in self._of_many for p in self._pools[g].loose_pages()
            }
            self._pages = [(key, g, p) for (g, p), key in self._page_keys.items()]
            heapq.heapify(self._pages)

    def _page_key(self, group: int, page: PageId) -> Key:
        """Of the cached block on a page that goes last."""
        return max(self._key(group, block) for block in self._pools[group].cached_on(page))

    def _key(self, group: int, block: BlockId) -> Key:
        if group in self._images.groups:
            return self._picture(group, block).order
        whole = group in self._whole
        owner = self._index.whole_node(group, block) if whole else self._index.piece(group, block)
        if owner is None:
            raise InvariantError(f"victims: block {block} of group {group} is cached but belongs to no prefix")
        return owner.key

    def _picture(self, group: int, block: BlockId) -> Picture:
        found = self._images.owner(group, block)
        if found is None:
            raise InvariantError(f"victims: block {block} of group {group} is cached but belongs to no image")
        return found

    def _evict_page(self, group: int, page: PageId) -> list[Victim]:
        if group in self._images.groups:
            pictures = dict.fromkeys(self._picture(group, block) for block in self._pools[group].cached_on(page))
            for picture in pictures:
                self._images.drop(picture)
            return list(pictures)
        gone: list[Victim] = []
        for block in self._pools[group].cached_on(page):
            piece = self._index.piece(group, block)
            node = self._index.owner(group, block)
            if piece is not None:
                self._index.drop(piece)
                gone.append(piece)
            elif node is not None:  # or it went with another block of the page
                self._index.remove(node)
                gone.append(node)
        return gone
