# What the tests do in a busybox container, as its root (sh -eux). Each line must succeed.
# $IMAGE comes from the image's metadata.json.

test "$(id -u):$(id -g)" = 0:0
case $IMAGE in busybox*) ;; *) exit 1 ;; esac

test "$(stat -c %u:%g:%a /)" = 0:0:755
# An id that this container does not know would be seen as 65534. What is mounted over the image is not the image's.
test -z "$(find / -xdev \( -path /proc -o -path /sys -o -path /tmp/garden-init \) -prune -o -user 65534 -print)"
test "$(stat -c %u:%g:%a /root)" = 0:0:700
test "$(stat -c %u:%g:%a /tmp)" = 0:0:1777
test "$(stat -c %u:%g /home)" = 1:1

echo new > /written
echo more >> /etc/motd
test "$(tail -n 1 /etc/motd)" = more

touch /owned
chown 1000:1001 /owned
test "$(stat -c %u:%g /owned)" = 1000:1001
cp /bin/busybox /setuid-busybox
chmod 4755 /setuid-busybox
test "$(stat -c %u:%g:%a /setuid-busybox)" = 0:0:4755

ln /written /written-too
test "$(stat -c %h /written)" = 2
ln -s /written /symlink
test "$(cat /symlink)" = new

rm /etc/group
test ! -e /etc/group
echo again > /etc/group
test "$(cat /etc/group)" = again
mkdir -p /first/below
echo moved > /first/below/file
mv /first /second
test "$(cat /second/below/file)" = moved
rm -r /usr
mkdir /usr
test -z "$(ls -A /usr)"

mkfifo /pipe
test -p /pipe

echo all done
