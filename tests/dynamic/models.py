"""Models of kinds that exporters write and whose sizes hang on what they compute: each a name, its text (weights among the inputs),
the weights, several inputs, and the opset where it is not 18."""
import numpy as np

rng = np.random.default_rng(3)


def f(*shape, scale=0.3):
    return (rng.standard_normal(shape) * scale).astype(np.float32)


def i64(*values):
    return np.array(values, dtype=np.int64)


def models():
    # 1 a voice activity net: rate decides the branch, pads come from it, state
    yield ("vad", """
    agraph (float[B, N] x, float[2, B, 32] state, int64 sr, float[64,1,16] k16, float[64,1,8] k8, float[1,128,64] w, float[1,128,32] r, float[1,256] b, float[32,1] wo) => (float[B, 1] prob, float[a, c, d] stateN) {
      rate = Constant<value = int64 {16000}>()
      is16 = Equal(sr, rate)
      pads = If (is16) <then_branch = t () => (int64[6] p) { p = Constant<value_ints = [0,0,8,0,0,8]>() }, else_branch = e () => (int64[6] p2) { q = Constant<value_ints = [0,0,4,0,0,4]>()
         p2 = Identity(q) }>
      one = Constant<value_ints = [1]>()
      x3 = Unsqueeze(x, one)
      xp = Pad<mode = "reflect">(x3, pads)
      feat = If (is16) <then_branch = t2 () => (float[u,v,z] y) { y = Conv<strides = [8]>(xp, k16) }, else_branch = e2 () => (float[u,v,z] y2) { y2 = Conv<strides = [4]>(xp, k8) }>
      a = Relu(feat)
      s = Transpose<perm = [2,0,1]>(a)
      zero = Constant<value_ints = [0]>()
      two = Constant<value_ints = [2]>()
      h0 = Slice(state, zero, one, zero)
      c0 = Slice(state, one, two, zero)
      ys, h, c = LSTM<hidden_size = 32>(s, w, r, b, , h0, c0)
      stateN = Concat<axis = 0>(h, c)
      hs = Squeeze(h, zero)
      o = MatMul(hs, wo)
      prob = Sigmoid(o)
    }""", dict(k16=f(64,1,16), k8=f(64,1,8), w=f(1,128,64), r=f(1,128,32), b=f(1,256), wo=f(32,1)),
     [dict(x=f(1,512), state=f(2,1,32), sr=np.array(16000)), dict(x=f(1,256), state=f(2,1,32), sr=np.array(8000)), dict(x=f(2,512), state=f(2,2,32), sr=np.array(16000))])

    # 2 a character model
    yield ("charnet", """
    agraph (int64[B, L] ids, float[100,16] table, float[32,16,5] k, float[2,48,32] w, float[2,48,16] r, float[2,96] b, float[32,10] wo) => (float[B, L, 10] y) {
      e = Gather(table, ids)
      t = Transpose<perm = [0,2,1]>(e)
      c = Conv<pads = [2,2]>(t, k)
      a = Relu(c)
      s = Transpose<perm = [2,0,1]>(a)
      g, last = GRU<hidden_size = 16, direction = "bidirectional", linear_before_reset = 1>(s, w, r, b)
      g2 = Transpose<perm = [2,0,1,3]>(g)
      shp = Constant<value_ints = [0,0,-1]>()
      g3 = Reshape(g2, shp)
      m = MatMul(g3, wo)
      y = LogSoftmax<axis = -1>(m)
    }""", dict(table=f(100,16), k=f(32,16,5), w=f(2,48,32), r=f(2,48,16), b=f(2,96), wo=f(32,10)),
     [dict(ids=rng.integers(0,100,(2,17))), dict(ids=rng.integers(0,100,(1,40)))])

    # 3 a graph net
    yield ("gnn", """
    agraph (float[N, 16] x, int64[2, E] edges, float[16,32] w1, float[32,8] w2) => (float[N, 8] y) {
      z = Constant<value_ints = [0]>()
      o = Constant<value_ints = [1]>()
      two = Constant<value_ints = [2]>()
      src2 = Slice(edges, z, o, z)
      dst2 = Slice(edges, o, two, z)
      src = Squeeze(src2, z)
      dst = Squeeze(dst2, z)
      n = Shape<start = 0, end = 1>(x)
      h = MatMul(x, w1)
      msg = Gather(h, src)
      zero = ConstantOfShape(n)
      ones = ConstantOfShape<value = float[1] {1.0}>(ecount)
      deg = ScatterElements<reduction = "add">(zero, dst, ones)
      dm = Max(deg, onef)
      d1 = Unsqueeze(dm, o)
      hs = Shape(h)
      zh = ConstantOfShape(hs)
      dst1 = Unsqueeze(dst, o)
      agg = ScatterND<reduction = "add">(zh, dst1, msg)
      mean = Div(agg, d1)
      r = Relu(mean)
      h2 = MatMul(r, w2)
      y = Softmax<axis = -1>(h2)
      ecount = Shape<start = 1, end = 2>(edges)
    }""".replace("  ecount = Shape<start = 1, end = 2>(edges)\n","").replace("  ones = Const","  ecount = Shape<start = 1, end = 2>(edges)\n  ones = Const").replace("float[32,8] w2)","float[32,8] w2, float[1] onef)"),
     dict(w1=f(16,32), w2=f(32,8), onef=np.ones(1,np.float32)),
     [dict(x=f(20,16), edges=rng.integers(0,20,(2,70))), dict(x=f(7,16), edges=rng.integers(0,7,(2,11)))])

    # 4 a Swin block with a pad computed from the size
    yield ("swin", """
    agraph (float[B, H, W, 32] x, float[32] g, float[32] bb, float[32,96] wqkv, float[96] bq, float[32,32] wp, float[2,49,49] rel, int64[3] pz, int64[1] seven, int64[1] zero, int64[1] one, int64[1] two, int64[1] three, int64[1] neg, int64[5] sp) => (float[B, H, W, 32] y) {
      n = LayerNormalization<axis = -1>(x, g, bb)
      h = Shape<start = 1, end = 2>(x)
      w = Shape<start = 2, end = 3>(x)
      b = Shape<start = 0, end = 1>(x)
      hm = Mod(h, seven)
      hs = Sub(seven, hm)
      hp = Mod(hs, seven)
      wm = Mod(w, seven)
      ws = Sub(seven, wm)
      wpd = Mod(ws, seven)
      pads = Concat<axis = 0>(zero, zero, zero, zero, zero, hp, wpd, zero)
      p = Pad(n, pads)
      s1 = Slice(p, three, big, one)
      s2 = Slice(p, zero, three, one)
      r1 = Concat<axis = 1>(s1, s2)
      s3 = Slice(r1, three, big, two)
      s4 = Slice(r1, zero, three, two)
      r2 = Concat<axis = 2>(s3, s4)
      ph = Add(h, hp)
      pw = Add(w, wpd)
      nh = Div(ph, seven)
      nw = Div(pw, seven)
      c32 = Shape<start = 3, end = 4>(x)
      sh6 = Concat<axis = 0>(b, nh, seven, nw, seven, c32)
      v6 = Reshape(r2, sh6)
      t6 = Transpose<perm = [0,1,3,2,4,5]>(v6)
      f49 = Mul(seven, seven)
      sh3 = Concat<axis = 0>(neg, f49, c32)
      win = Reshape(t6, sh3)
      qkv0 = MatMul(win, wqkv)
      qkv = Add(qkv0, bq)
      sh5 = Concat<axis = 0>(neg, f49, sp3)
      q5 = Reshape(qkv, sh5)
      t5 = Transpose<perm = [2,0,3,1,4]>(q5)
      q1, k1, v1 = Split<axis = 0, num_outputs = 3>(t5)
      q = Squeeze(q1, zero)
      k = Squeeze(k1, zero)
      v = Squeeze(v1, zero)
      kt = Transpose<perm = [0,1,3,2]>(k)
      a0 = MatMul(q, kt)
      a1 = Mul(a0, quarter)
      a2 = Add(a1, rel)
      a3 = Softmax<axis = -1>(a2)
      o = MatMul(a3, v)
      ot = Transpose<perm = [0,2,1,3]>(o)
      of = Reshape(ot, sh3)
      pr = MatMul(of, wp)
      sb = Concat<axis = 0>(b, nh, nw, seven, seven, c32)
      back = Reshape(pr, sb)
      bt = Transpose<perm = [0,1,3,2,4,5]>(back)
      s4d = Concat<axis = 0>(b, ph, pw, c32)
      img = Reshape(bt, s4d)
      m3 = Neg(three)
      u1 = Slice(img, m3, big, one)
      u2 = Slice(img, zero, m3, one)
      w1 = Concat<axis = 1>(u1, u2)
      u3 = Slice(w1, m3, big, two)
      u4 = Slice(w1, zero, m3, two)
      w2 = Concat<axis = 2>(u3, u4)
      hw = Concat<axis = 0>(h, w)
      ax = Concat<axis = 0>(one, two)
      z2 = Concat<axis = 0>(zero, zero)
      cut = Slice(w2, z2, hw, ax)
      y = Add(x, cut)
    }""".replace("int64[5] sp)","int64[3] sp3, int64[1] big, float quarter)").replace("int64[3] pz, ",""),
     dict(g=f(32)+1, bb=f(32), wqkv=f(32,96), bq=f(96), wp=f(32,32), rel=f(2,49,49), seven=i64(7), zero=i64(0), one=i64(1), two=i64(2), three=i64(3), neg=i64(-1), sp3=i64(3,2,16), big=i64(2**62), quarter=np.float32(0.25)),
     [dict(x=f(1,14,14,32)), dict(x=f(1,9,17,32)), dict(x=f(2,20,8,32))])

    # 5 T5: relative position buckets
    yield ("t5", """
    agraph (int64[B, L] ids, float[50,32] table, float[32] g, float[32,32] wq, float[32,32] wk, float[32,32] wv, float[32,32] wo, float[32,4] bias, float eps, int64 zero, int64 one, int64 sixteen, int64 eight, float c1, float c2, int64[4] hs, int64[3] back) => (float[B, L, 32] y) {
      x = Gather(table, ids)
      xx = Mul(x, x)
      ms = ReduceMean<axes = [-1]>(xx)
      me = Add(ms, eps)
      rt = Sqrt(me)
      xn0 = Div(x, rt)
      xn = Mul(xn0, g)
      l1 = Shape<start = 1, end = 2>(ids)
      l = Squeeze(l1)
      pos = Range(zero, l, one)
      ax1 = Constant<value_ints = [1]>()
      ax0 = Constant<value_ints = [0]>()
      ctx = Unsqueeze(pos, ax1)
      mem = Unsqueeze(pos, ax0)
      rp = Sub(mem, ctx)
      isp = Greater(rp, zero)
      isi = Cast<to = 7>(isp)
      half = Mul(isi, sixteen)
      ra = Abs(rp)
      small = Less(ra, eight)
      rf = Cast<to = 1>(ra)
      rd = Div(rf, c1)
      rl = Log(rd)
      rs = Mul(rl, c2)
      ri = Cast<to = 7>(rs)
      rb = Add(ri, eight)
      fifteen = Sub(sixteen, one)
      rsh = Shape(rb)
      ff = Expand(fifteen, rsh)
      rm = Min(rb, ff)
      sel = Where(small, ra, rm)
      bucket = Add(half, sel)
      bv = Gather(bias, bucket)
      bt = Transpose<perm = [2,0,1]>(bv)
      b4 = Unsqueeze(bt, ax0)
      q0 = MatMul(xn, wq)
      k0 = MatMul(xn, wk)
      v0 = MatMul(xn, wv)
      q1 = Reshape(q0, hs)
      k1 = Reshape(k0, hs)
      v1 = Reshape(v0, hs)
      q = Transpose<perm = [0,2,1,3]>(q1)
      k = Transpose<perm = [0,2,3,1]>(k1)
      v = Transpose<perm = [0,2,1,3]>(v1)
      s = MatMul(q, k)
      sb = Add(s, b4)
      p = Softmax<axis = -1>(sb)
      o = MatMul(p, v)
      ot = Transpose<perm = [0,2,1,3]>(o)
      of = Reshape(ot, back)
      op = MatMul(of, wo)
      y = Add(x, op)
    }""", dict(table=f(50,32), g=f(32)+1, wq=f(32,32), wk=f(32,32), wv=f(32,32), wo=f(32,32), bias=f(32,4), eps=np.float32(1e-6), zero=np.array(0), one=np.array(1), sixteen=np.array(16), eight=np.array(8), c1=np.float32(8), c2=np.float32(8/np.log(128/8)), hs=i64(0,0,4,8), back=i64(0,0,32)),
     [dict(ids=rng.integers(0,50,(1,12))), dict(ids=rng.integers(0,50,(2,60)))], 17)

    # 6 Whisper decoder step with past
    yield ("whisper_step", """
    agraph (int64[B, 1] ids, float[B, 4, P, 8] pk, float[B, 4, P, 8] pv, float[B, 4, S, 8] ck, float[B, 4, S, 8] cv, float[60,32] table, float[100,32] posn, float[32] g, float[32] bb, float[32,32] wq, float[32,32] wk, float[32,32] wv, float[32,32] wo, float[32,32] wc, float[32,64] f1, float[64,32] f2, int64[4] hs, int64[3] back, float sc) => (float[B, 1, 60] logits, float[B, 4, P1, 8] nk, float[B, 4, P1, 8] nv) {
      e = Gather(table, ids)
      pl = Shape<start = 2, end = 3>(pk)
      pe = Gather(posn, pl)
      x = Add(e, pe)
      n = LayerNormalization<axis = -1>(x, g, bb)
      q0 = MatMul(n, wq)
      k0 = MatMul(n, wk)
      v0 = MatMul(n, wv)
      q1 = Reshape(q0, hs)
      k1 = Reshape(k0, hs)
      v1 = Reshape(v0, hs)
      q2 = Transpose<perm = [0,2,1,3]>(q1)
      k2 = Transpose<perm = [0,2,1,3]>(k1)
      v2 = Transpose<perm = [0,2,1,3]>(v1)
      nk = Concat<axis = 2>(pk, k2)
      nv = Concat<axis = 2>(pv, v2)
      kt = Transpose<perm = [0,1,3,2]>(nk)
      s = MatMul(q2, kt)
      s1 = Mul(s, sc)
      p = Softmax<axis = -1>(s1)
      o = MatMul(p, nv)
      ot = Transpose<perm = [0,2,1,3]>(o)
      of = Reshape(ot, back)
      op = MatMul(of, wo)
      x2 = Add(x, op)
      cq0 = MatMul(x2, wc)
      cq1 = Reshape(cq0, hs)
      cq = Transpose<perm = [0,2,1,3]>(cq1)
      ckt = Transpose<perm = [0,1,3,2]>(ck)
      cs = MatMul(cq, ckt)
      cs1 = Mul(cs, sc)
      cp = Softmax<axis = -1>(cs1)
      co = MatMul(cp, cv)
      cot = Transpose<perm = [0,2,1,3]>(co)
      cof = Reshape(cot, back)
      x3 = Add(x2, cof)
      m1 = MatMul(x3, f1)
      m2 = Gelu(m1)
      m3 = MatMul(m2, f2)
      x4 = Add(x3, m3)
      tt = Transpose<perm = [1,0]>(table)
      logits = MatMul(x4, tt)
    }""", dict(table=f(60,32), posn=f(100,32), g=f(32)+1, bb=f(32), wq=f(32,32), wk=f(32,32), wv=f(32,32), wo=f(32,32), wc=f(32,32), f1=f(32,64), f2=f(64,32), hs=i64(0,0,4,8), back=i64(0,0,32), sc=np.float32(8**-0.5)),
     [dict(ids=rng.integers(0,60,(1,1)), pk=f(1,4,p,8), pv=f(1,4,p,8), ck=f(1,4,30,8), cv=f(1,4,30,8)) for p in (0, 1, 9)], 20)

    # 7 detection head
    yield ("detect", """
    agraph (float[1, 16, H, W] x, float[6,16,1,1] kb, int64[3] rs, int64 ten, float iou, float thr, int64[1] one, int64[1] zero, int64[1] two, int64[1] three, int64[1] four, int64[1] six, int64 hundred, float half) => (float[M, 4] boxes, float[M] scores, int64[M] classes, float[Q, 2] best) {
      m0 = Conv(x, kb)
      m1 = Reshape(m0, rs)
      m = Transpose<perm = [0,2,1]>(m1)
      bx0 = Slice(m, zero, four, two)
      bx1 = Sigmoid(bx0)
      c0 = Slice(bx1, zero, two, two)
      wh = Slice(bx1, two, four, two)
      whh = Mul(wh, half)
      lo = Sub(c0, whh)
      hi = Add(c0, whh)
      bx = Concat<axis = 2>(lo, hi)
      sc0 = Slice(m, four, six, two)
      sc1 = Sigmoid(sc0)
      sc = Transpose<perm = [0,2,1]>(sc1)
      sel = NonMaxSuppression(bx, sc, hundred, iou, thr)
      cls0 = Slice(sel, one, two, one)
      classes = Squeeze(cls0, one)
      idx0 = Slice(sel, two, three, one)
      idx = Squeeze(idx0, one)
      b2 = Squeeze(bx, zero)
      boxes = Gather(b2, idx)
      s2 = Squeeze(sc, zero)
      ci = Concat<axis = 1>(cls0, idx0)
      scores = GatherND(s2, ci)
      cnt = Shape<start = 0, end = 1>(scores)
      ten1 = Unsqueeze(ten, zero)
      kk = Min(cnt, ten1)
      tv, ti = TopK<axis = 0>(scores, kk)
      tb = Gather(boxes, ti)
      tb2 = Slice(tb, zero, two, one)
      tv1 = Unsqueeze(tv, one)
      best = Mul(tb2, tv1)
    }""", dict(kb=f(6,16,1,1), rs=i64(1,6,-1), ten=np.array(10), iou=np.float32(0.5), thr=np.float32(0.5), one=i64(1), zero=i64(0), two=i64(2), three=i64(3), four=i64(4), six=i64(6), hundred=np.array(100), half=np.float32(0.2) ),
     [dict(x=f(1,16,8,8,scale=1)), dict(x=f(1,16,13,5,scale=1)), dict(x=-10*np.ones((1,16,4,4),np.float32))])

    # 8 greedy decoding in a Loop whose state grows
    yield ("greedy", """
    agraph (int64[1, L] ids, float[30,16] table, float[16,16] w, float[16,30] wo, int64 most, bool yes, int64 eos) => (int64[1, T] out, int64 steps) {
      n0 = Constant<value = int64 {0}>()
      out, steps = Loop(most, yes, ids, n0) <body = step (int64 it, bool go, int64[1, K] cur, int64 n) => (bool again, int64[1, K1] grown, int64 n1) {
        e = Gather(table, cur)
        h = MatMul(e, w)
        t = Tanh(h)
        axis = Constant<value_ints = [1]>()
        mean = ReduceMean(t, axis)
        lg = MatMul(mean, wo)
        nxt = ArgMax<axis = -1>(lg)
        last = Squeeze(nxt)
        grown = Concat<axis = 1>(cur, nxt)
        one = Constant<value = int64 {1}>()
        n1 = Add(n, one)
        same = Equal(last, eos)
        again = Not(same)
      }>
    }""".replace("mean = ReduceMean(t, axis)","mean = ReduceMean<keepdims = 0>(t, axis)"),
     dict(table=f(30,16,scale=1), w=f(16,16), wo=f(16,30), most=np.array(12), yes=np.array(True), eos=np.array(7)),
     [dict(ids=i64(1,2,3)[None]), dict(ids=i64(9)[None])])

    # 9 text to speech: durations, repeat_interleave by cumsum, convolutions on what came out
    yield ("tts", """
    agraph (int64[1, L] ids, float[40,16] table, float[16,1] wd, float[24,16,5] k1, float[8,24,3] k2, int64 zero, int64 one, float two_f, int64[1] ax1, int64[1] ax0, int64[1] neg, int64 ax) => (float[1, 8, T] mel, int64[1, L] dur) {
      e = Gather(table, ids)
      d0 = MatMul(e, wd)
      d1 = Squeeze(d0, neg)
      d2 = Exp(d1)
      d3 = Mul(d2, two_f)
      d4 = Ceil(d3)
      dur = Cast<to = 7>(d4)
      cum = CumSum(dur, ax)
      tot0 = ReduceMax<keepdims = 0>(cum)
      t = Range(zero, tot0, one)
      tr = Unsqueeze(t, ax0)
      cc0 = Squeeze(cum, ax0)
      cc = Unsqueeze(cc0, ax1)
      ge = GreaterOrEqual(tr, cc)
      gi = Cast<to = 7>(ge)
      which = ReduceSum<keepdims = 0>(gi, ax0)
      e2 = Squeeze(e, ax0)
      up = Gather(e2, which)
      ut = Transpose<perm = [1,0]>(up)
      u3 = Unsqueeze(ut, ax0)
      c1 = Conv<pads = [2,2]>(u3, k1)
      r1 = LeakyRelu(c1)
      mel = Conv<pads = [1,1]>(r1, k2)
    }""", dict(table=f(40,16), wd=f(16,1), k1=f(24,16,5), k2=f(8,24,3), zero=np.array(0), one=np.array(1), two_f=np.float32(2), ax1=i64(1), ax0=i64(0), neg=i64(-1), ax=np.array(1)),
     [dict(ids=rng.integers(0,40,(1,9))), dict(ids=rng.integers(0,40,(1,21)))])

    # 10 a Loop that stops where its data says so, with two scan outputs; some that never turn
    yield ("until", """
    agraph (float[n,8] x, float[1,8] e, int64 most, bool go, float[8,8] w, float limit) => (float[a,8] y, float[t,n,8] all, int64[t] at, float[8] sum) {
      y, all, at = Loop(most, go, x) <body = turn (int64 i, bool on, float[k,8] s) => (bool more, float[k,8] next, float[k,8] u, int64 j) {
        m = MatMul(s, w)
        next = Tanh(m)
        u = Mul(next, e)
        j = Mul(i, i)
        top = ReduceMax<keepdims = 0>(next)
        more = Less(limit, top)
      }>
      axes = Constant<value_ints = [0, 1]>()
      sum = ReduceSum<keepdims = 0>(all, axes)
    }""", dict(w=f(8,8), limit=np.float32(0.05)),
     [dict(x=f(n,8,scale=scale), e=f(1,8), most=np.array(most), go=np.array(go))
      for n, scale, most, go in ((1,1,30,True),(3,9,30,True),(1,9,2,True),(1,1,1,True))])

    # 11 bags of an embedding, some of them empty: a Slice in the body has bounds from data, sizes come again and again
    yield ("bags", """
    agraph (int64[L] ids, int64[B] starts, int64[B] ends, float[30,8] table, float[8,4] w, bool go) => (float[B,4] y) {
      b = Shape(starts)
      zero = Constant<value_ints = [0]>()
      most = Squeeze(b, zero)
      bags = Loop(most, go) <body = bag (int64 i, bool on) => (bool more, float[8] one) {
        more = Identity(on)
        from0 = Gather(starts, i)
        to0 = Gather(ends, i)
        from = Unsqueeze(from0, zero)
        to = Unsqueeze(to0, zero)
        some = Slice(ids, from, to, zero)
        rows = Gather(table, some)
        one = ReduceSum<keepdims = 0>(rows, zero)
      }>
      y = MatMul(bags, w)
    }""", dict(table=f(30,8,scale=1), w=f(8,4), go=np.array(True)),
     [dict(ids=rng.integers(0,30,(20,)), starts=i64(0,3,5,5,9), ends=i64(3,5,5,9,20)), dict(ids=rng.integers(0,30,(9,)), starts=i64(0,2,4), ends=i64(2,4,9))])

    # 12 a Loop in a Loop, as often as the outer one has turned; an If in it whose branches differ in size
    yield ("turns_in_turns", """
    agraph (float[2,8] x, float[8,8] w, int64 most, bool go) => (float[2,8] y, float[t,8] all, float[t] some) {
      y, all, some = Loop(most, go, x) <body = turn (int64 i, bool on, float[2,8] s) => (bool more, float[2,8] next, float[8] u, float v) {
        more = Identity(on)
        one = Constant<value = int64 {1}>()
        two = Constant<value = int64 {2}>()
        n = Add(i, one)
        next, rows = Loop(n, on, s) <body = inner (int64 j, bool going, float[2,8] q) => (bool again, float[2,8] q1, float[2,8] r) {
          again = Identity(going)
          m = MatMul(q, w)
          q1 = Tanh(m)
          r = Add(q1, s)
        }>
        axes = Constant<value_ints = [0, 1]>()
        u = ReduceSum<keepdims = 0>(rows, axes)
        odd0 = Mod(i, two)
        odd = Cast<to = 9>(odd0)
        parts = If(odd) <then_branch = a () => (float[k,8] pa) { pa = Neg(x) }, else_branch = b () => (float[k,8] pb) { pb = Concat<axis = 0>(x, s) }>
        v = ReduceSum<keepdims = 0>(parts)
      }>
    }""", dict(w=f(8,8), go=np.array(True)), [dict(x=f(2,8), most=np.array(k)) for k in (3,5,1)])
