<p>x
