# What the tests do in a Debian container, as its root (sh -eux). Each line must succeed.
# $IMAGE comes from the image's metadata.json; /package.deb is mounted by the test.

test "$(id -u):$(id -g)" = 0:0
case $IMAGE in debian*) ;; *) exit 1 ;; esac

# Ownership: nothing in the image belongs to an id this container does not know (which it would see as 65534), and everything to
# the one it was made with. What is mounted over the image is not the image's.
test "$(stat -c %u:%g:%a /)" = 0:0:755
test -z "$(find / -xdev \( -path /proc -o -path /sys -o -path /package.deb -o -path /tmp/garden-init \) -prune -o \
	\( -uid 65534 -o -gid 65534 \) -print)"
test "$(stat -c %u:%g:%a /etc/shadow)" = 0:42:640
test "$(stat -c %u:%g:%a /usr/bin/passwd)" = 0:0:4755
test "$(stat -c %g:%a /var/local)" = 50:2775
test "$(stat -c %g:%a /usr/bin/chage)" = 42:2755

# Write, over the image and new.
echo new > /written
echo more >> /etc/issue
test "$(tail -n 1 /etc/issue)" = more

# Owners and modes, of new files and of the image's.
touch /owned
chown 1000:1001 /owned
test "$(stat -c %u:%g /owned)" = 1000:1001
chown daemon:daemon /etc/issue.net
test "$(stat -c %u:%g /etc/issue.net)" = 1:1
chown root:root /owned
test "$(stat -c %u:%g /owned)" = 0:0
chmod 0604 /etc/debian_version
test "$(stat -c %a /etc/debian_version)" = 604

# A setuid-root program is root's for a user, one made here and the image's own.
cp /usr/bin/id /setuid-id
chmod u+s /setuid-id
as_user='setpriv --reuid 1000 --regid 1000 --clear-groups'
test "$($as_user /usr/bin/id -u)" = 1000
test "$($as_user /setuid-id -u)" = 0

# Hard links, of a new file and of the image's: both names are one file.
echo text > /linked
ln /linked /linked-too
echo through-the-other >> /linked-too
test "$(tail -n 1 /linked)" = through-the-other
test "$(stat -c %h /linked)" = 2
ln /etc/pam.conf /pam-too
echo '# changed' >> /pam-too
test "$(tail -n 1 /etc/pam.conf)" = '# changed'
test "$(stat -c %h /etc/pam.conf)" = 2

# Symlinks.
ln -s /written /symlink
test "$(cat /symlink)" = new
ln -s nowhere /dangling
test "$(readlink /dangling)" = nowhere

# Unlink and make again: files, and directories whose old content must not shine through.
rm /etc/host.conf
test ! -e /etc/host.conf
echo again > /etc/host.conf
test "$(cat /etc/host.conf)" = again
rm -r /usr/share/common-licenses
test ! -e /usr/share/common-licenses
mkdir /usr/share/common-licenses
test -z "$(ls -A /usr/share/common-licenses)"
rm -r /usr/share/doc/base-files
echo file > /usr/share/doc/base-files
test -f /usr/share/doc/base-files

# Rename directories, a new one and the image's.
mkdir -p /first/below
echo moved > /first/below/file
mv /first /second
test "$(cat /second/below/file)" = moved
before=$(find /etc/pam.d -type f | wc -l)
mv /etc/pam.d /etc/pam.moved
test ! -e /etc/pam.d
test "$(find /etc/pam.moved -type f | wc -l)" = "$before"
mv /etc/pam.moved /etc/pam.d

# Pipes.
mkfifo /pipe
echo through-the-pipe > /pipe &
test "$(cat /pipe)" = through-the-pipe
wait
test -p /pipe

# A real package: dpkg makes owners, modes, renames over existing files, and the program it installs is setuid root.
dpkg -i /package.deb
test "$(stat -c %u:%g:%a /usr/bin/sudo)" = 0:0:4755
test "$(stat -c %u:%g:%a /etc/sudoers)" = 0:0:440
echo 'tester ALL=(ALL) NOPASSWD:ALL' > /etc/sudoers.d/tester
useradd -m -u 1000 tester
test "$($as_user sudo -n id -u)" = 0
test -z "$(dpkg --verify sudo)"

# Deep enough for the removal to need more than one path.
perl -e 'for (1 .. 200) { mkdir "d" x 100 or die $!; chdir "d" x 100 or die $! }'

echo all done
